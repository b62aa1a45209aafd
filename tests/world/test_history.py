"""The judge of answers, on short histories whose verdict is known."""

import itertools
from random import Random
from typing import Any

import pytest

from tests.world.history import CONFLICT, LOST, MISSING, NEW, OK, SAME, Call, History, Request
from tests.world.models import Routes, RoutingModel, StreamModel

CREATE, OTHER = Call("create", ("a",)), Call("create", ("b",))
DELETE, FIND = Call("delete"), Call("find")
EITHER = frozenset((OK, MISSING))  # what AMQP answers to a delete


def fault(*events: tuple[Call, int, int, Any]) -> str:
    """What cannot be explained: calls with when they were sent and answered, and the answer."""
    history = History("s", StreamModel(), itertools.count().__next__)
    for call, sent, end, answer in events:
        told = answer if isinstance(answer, frozenset) else frozenset((answer,))
        history.requests.append(Request(call, "c", sent, end, told))
    return history.judge()


FOREVER = 1 << 60


@pytest.mark.parametrize(
    "events",
    [
        [(CREATE, 1, 2, NEW), (FIND, 3, 4, OK), (DELETE, 5, 6, OK), (FIND, 7, 8, MISSING)],
        # Both at the same time: either may be first.
        [(CREATE, 1, 4, NEW), (FIND, 2, 3, OK)],
        [(CREATE, 1, 4, NEW), (FIND, 2, 3, MISSING)],
        [(CREATE, 1, 5, NEW), (OTHER, 2, 6, CONFLICT), (DELETE, 3, 7, OK), (FIND, 8, 9, MISSING)],
        # The answer may be the same whether there was something or not.
        [(CREATE, 1, 4, NEW), (DELETE, 2, 5, EITHER), (FIND, 6, 7, MISSING)],
        [(CREATE, 1, 4, NEW), (DELETE, 2, 5, EITHER), (FIND, 6, 7, OK)],
        # One without an answer may have been carried out, at any time, or not at all.
        [(CREATE, 1, FOREVER, LOST), (FIND, 2, 3, MISSING), (FIND, 4, 5, OK)],
        [(CREATE, 1, FOREVER, LOST), (FIND, 2, 3, MISSING), (FIND, 4, 5, MISSING)],
        # The same of two whose server has ended: they may have been carried out in any order.
        [(DELETE, 1, 4, LOST), (CREATE, 2, 5, LOST), (FIND, 6, 7, OK)],
        [(DELETE, 1, 4, LOST), (CREATE, 2, 5, LOST), (FIND, 6, 7, MISSING)],
    ],
)
def test_explained(events: list[tuple[Call, int, int, Any]]) -> None:
    assert fault(*events) == ""


@pytest.mark.parametrize(
    "events",
    [
        [(FIND, 1, 2, OK)],
        [(CREATE, 1, 2, NEW), (CREATE, 3, 4, NEW)],
        [(CREATE, 1, 2, NEW), (FIND, 3, 4, MISSING)],
        # It was there, then it was not, though nobody has deleted it.
        [(CREATE, 1, 6, NEW), (FIND, 2, 3, OK), (FIND, 4, 5, MISSING)],
        # Only one of two that delete can have found it.
        [(CREATE, 1, 2, NEW), (DELETE, 3, 6, OK), (DELETE, 4, 5, OK)],
        # Its server had ended before.
        [(CREATE, 3, 4, LOST), (FIND, 1, 2, OK)],
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
            *(Call(kind) for kind in ("delete_super", "partitions", "delete_exchange", "bound")),
            *(Call(kind, ("x-0",)) for kind in ("create_stream", "delete_stream")),
            *(Call(kind, ("k", "x-0")) for kind in ("bind", "unbind")),
            Call("create_exchange", ("topic",)),
        ]
        for moment in range(100, 3_000, 100):
            call = chance.choice(calls)
            outcome, state = chance.choice(list(model.step(state, call)))
            sent, end = moment - chance.randint(0, 400), moment + chance.randint(1, 400)
            is_lost = chance.random() < 0.1
            answer = LOST if is_lost else frozenset((outcome,))
            requests.append(Request(call, "c", sent, FOREVER if is_lost else end, answer))
        history = History("x", model, itertools.count().__next__)
        history.requests = sorted(requests, key=lambda request: request.sent)
        assert history.judge() == ""


@pytest.mark.parametrize("told", [None, 0, 2, 3])
@pytest.mark.parametrize("is_closed_soon", [False, True])
def test_an_offset_is_cut_where_a_log_is_opened_again(
    told: int | None, *, is_closed_soon: bool
) -> None:
    model = StreamModel()
    model.is_closed_soon = is_closed_soon
    history = History("s", model, itertools.count().__next__)
    for call, outcome in ((CREATE, NEW), (Call("store", (2,)), OK), (Call("stored"), (OK, told))):
        history.end(history.begin(call, "c"), frozenset((outcome,)))
    assert bool(history.judge()) == (told == 3 or (told != 2 and not is_closed_soon))


def test_new_is_told_from_same() -> None:
    assert fault((CREATE, 1, 3, NEW), (CREATE, 2, 4, SAME)) == ""
    assert fault((CREATE, 1, 3, NEW), (CREATE, 2, 4, NEW))
