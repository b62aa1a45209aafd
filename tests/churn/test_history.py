"""The judge of answers, on short histories whose verdict is known."""

import itertools
from random import Random
from typing import Any

import pytest

from tests.churn.history import CONFLICT, LOST, MISSING, NEW, OK, SAME, Call, History, Request
from tests.churn.models import Routes, RoutingModel, StreamModel

CREATE, OTHER = Call("create", ("a",)), Call("create", ("b",))
DELETE, FIND, REMOVE = Call("delete"), Call("find"), Call("remove")


def fault(*events: tuple[Call, int, int, Any]) -> str:
    """What cannot be explained: calls with when they were sent and answered, and the answer."""
    history = History("s", StreamModel(), itertools.count().__next__)
    history.requests = [Request(call, "c", sent, end, out) for call, sent, end, out in events]
    verdict = history.judge()
    assert verdict.is_decided
    return verdict.fault


FOREVER = 1 << 60


@pytest.mark.parametrize(
    "events",
    [
        [(CREATE, 1, 2, OK), (FIND, 3, 4, OK), (DELETE, 5, 6, OK), (FIND, 7, 8, MISSING)],
        # Both at the same time: either may be first.
        [(CREATE, 1, 4, OK), (FIND, 2, 3, OK)],
        [(CREATE, 1, 4, OK), (FIND, 2, 3, MISSING)],
        [(CREATE, 1, 5, OK), (OTHER, 2, 6, CONFLICT), (DELETE, 3, 7, OK), (FIND, 8, 9, MISSING)],
        # A remove answers the same whether there was something or not.
        [(CREATE, 1, 4, OK), (REMOVE, 2, 5, OK), (FIND, 6, 7, MISSING)],
        [(CREATE, 1, 4, OK), (REMOVE, 2, 5, OK), (FIND, 6, 7, OK)],
        # One without an answer may have been carried out, at any time, or not at all.
        [(CREATE, 1, FOREVER, LOST), (FIND, 2, 3, MISSING), (FIND, 4, 5, OK)],
        [(CREATE, 1, FOREVER, LOST), (FIND, 2, 3, MISSING), (FIND, 4, 5, MISSING)],
    ],
)
def test_explained(events: list[tuple[Call, int, int, Any]]) -> None:
    assert fault(*events) == ""


@pytest.mark.parametrize(
    "events",
    [
        [(FIND, 1, 2, OK)],
        [(CREATE, 1, 2, OK), (CREATE, 3, 4, OK)],
        [(CREATE, 1, 2, OK), (FIND, 3, 4, MISSING)],
        # It was there, then it was not, though nobody has deleted it.
        [(CREATE, 1, 6, OK), (FIND, 2, 3, OK), (FIND, 4, 5, MISSING)],
        # Only one of two that delete can have found it.
        [(CREATE, 1, 2, OK), (DELETE, 3, 6, OK), (DELETE, 4, 5, OK)],
        # One that is too old to have an effect.
        [(CREATE, 1, 2, LOST), (FIND, 3, 4, OK)],
        # It was lost once, and cannot be carried out twice.
        [(CREATE, 1, FOREVER, LOST), (DELETE, 2, 3, OK), (DELETE, 4, 5, OK)],
    ],
)
def test_not_explained(events: list[tuple[Call, int, int, Any]]) -> None:
    assert "no order of the requests explains" in fault(*events)


def test_whatever_happened_one_after_the_other_is_explained() -> None:
    """Random requests, each carried out at some moment between its sending and its answer."""
    for seed in range(200):
        chance = Random(seed)
        state, model, requests = Routes(), RoutingModel(), []
        keys = (("0", "x-0"), ("1", "x-1"))
        calls = [
            Call("make_super", (keys,)),
            *(Call(kind) for kind in ("delete_super", "partitions", "remove_exchange", "bound")),
            *(Call(kind, ("x-0",)) for kind in ("create_stream", "delete_stream")),
            *(Call(kind, ("k", "x-0")) for kind in ("bind", "unbind", "drop_binding")),
            Call("put_exchange", ("topic",)),
        ]
        for moment in range(100, 3_000, 100):
            call = chance.choice(calls)
            outcome, state = chance.choice(list(model.step(state, call)))
            sent, end = moment - chance.randint(0, 400), moment + chance.randint(1, 400)
            is_lost = chance.random() < 0.1
            requests.append(
                Request(call, "c", sent, FOREVER if is_lost else end, LOST if is_lost else outcome)
            )
        history = History("x", model, itertools.count().__next__)
        history.requests = sorted(requests, key=lambda request: request.sent)
        verdict = history.judge()
        assert verdict.is_decided
        assert verdict.fault == ""


def test_put_tells_new_from_same() -> None:
    put = Call("put", ("a",))
    assert fault((put, 1, 3, NEW), (put, 2, 4, SAME)) == ""
    assert fault((put, 1, 3, NEW), (put, 2, 4, NEW))
