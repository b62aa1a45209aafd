"""Requests with several faults at once: which one is reported, see docs/internals/protocols.md."""

from typing import Any

import pytest

from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.auth.test_users import add, enter
from tests.support.server import FIRST, Harness, Peer

OK = ResponseCode.OK
REFUSED, NO_STREAM = ResponseCode.ACCESS_REFUSED, ResponseCode.STREAM_DOES_NOT_EXIST
PRECONDITION = ResponseCode.PRECONDITION_FAILED
LONG = "x" * 256
NAMED_LONG = (Pair("name", LONG),)
GROUP = (Pair("single-active-consumer", "true"),)
FOREIGN, MISSING = "foreign", "missing"  # a stream without permission, a permitted one not there


@pytest.fixture
async def user(server: Harness, peer: Peer) -> Peer:
    """A peer with all rights, except to stream "foreign"; has publisher 1 and subscription 1."""
    await peer.create("s")
    await peer.create(FOREIGN)
    allowed = "^(?!foreign)"
    await add(peer, "ada", allowed, allowed, allowed)
    user = await enter(server, "ada")
    await user.declare("s", 1, "ref")
    await user.subscribe("s", subscription_id=1)
    return user


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ((c.DeclarePublisher, 1, LONG, FOREIGN), REFUSED),
        ((c.DeclarePublisher, 1, LONG, MISSING), PRECONDITION),
        ((c.DeclarePublisher, 1, "", FOREIGN), REFUSED),
        ((c.DeclarePublisher, 1, "", MISSING), PRECONDITION),
        ((c.DeclarePublisher, 2, "ref", "s"), PRECONDITION),
        ((c.DeclarePublisher, 2, "ref", MISSING), NO_STREAM),
        ((c.DeclarePublisher, 2, "", "s"), OK),
        ((c.QueryPublisherSequence, LONG, FOREIGN), REFUSED),
        ((c.QueryPublisherSequence, LONG, MISSING), PRECONDITION),
        ((c.QueryPublisherSequence, "none", MISSING), NO_STREAM),
        ((c.QueryPublisherSequence, "none", "s"), OK),
        ((c.Subscribe, 1, FOREIGN, FIRST, 1, NAMED_LONG), REFUSED),
        ((c.Subscribe, 1, MISSING, FIRST, 1, NAMED_LONG), PRECONDITION),
        ((c.Subscribe, 1, FOREIGN, FIRST, 1, GROUP), REFUSED),
        ((c.Subscribe, 1, MISSING, FIRST, 1, GROUP), NO_STREAM),
        ((c.Subscribe, 1, "s", FIRST, 1, GROUP), ResponseCode.SUBSCRIPTION_ID_EXISTS),
        ((c.Subscribe, 2, "s", FIRST, 1, GROUP), PRECONDITION),
        ((c.QueryOffset, LONG, FOREIGN), REFUSED),
        ((c.QueryOffset, LONG, MISSING), PRECONDITION),
        ((c.QueryOffset, "none", MISSING), NO_STREAM),
        ((c.QueryOffset, "none", "s"), ResponseCode.NO_OFFSET),
        ((c.Create, "", ()), PRECONDITION),
        ((c.Create, FOREIGN, (Pair("max-age", "bad"),)), REFUSED),
        ((c.Create, "s", (Pair("max-age", "bad"),)), PRECONDITION),
        ((c.Create, "s", (Pair("max-age", "1D"),)), PRECONDITION),
        ((c.Create, "s", ()), ResponseCode.STREAM_EXISTS),
        ((c.Delete, FOREIGN), REFUSED),
        ((c.Delete, MISSING), NO_STREAM),
        ((c.StreamStats, FOREIGN), REFUSED),
        ((c.StreamStats, MISSING), NO_STREAM),
        ((c.ResolveOffsetSpec, FOREIGN, FIRST, ()), REFUSED),
        ((c.ResolveOffsetSpec, MISSING, FIRST, ()), NO_STREAM),
        ((c.Route, "k", FOREIGN), REFUSED),
        ((c.Route, "k", MISSING), NO_STREAM),
        ((c.Partitions, FOREIGN), REFUSED),
        ((c.Partitions, MISSING), NO_STREAM),
        ((c.CreateSuperStream, "", ("p",), ("0",), ()), PRECONDITION),
        ((c.CreateSuperStream, FOREIGN, ("p",), ("0", "1"), ()), REFUSED),
        ((c.CreateSuperStream, "i", ("p",), ("0", "1"), ()), PRECONDITION),
        ((c.CreateSuperStream, "i", ("p", "p"), ("0", "1"), ()), PRECONDITION),
        ((c.CreateSuperStream, "i", ("s",), ("0",), ()), ResponseCode.STREAM_EXISTS),
        ((c.DeleteSuperStream, FOREIGN), REFUSED),
        ((c.DeleteSuperStream, MISSING), NO_STREAM),
        ((c.DeletePublisher, 7), ResponseCode.PUBLISHER_DOES_NOT_EXIST),
        ((c.Unsubscribe, 7), ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST),
    ],
    ids=repr,
)
async def test_the_first_fault_is_reported(user: Peer, command: tuple[Any, ...], code: int) -> None:
    assert await user.code(*command) == code


@pytest.mark.parametrize("stream", ["s", FOREIGN, MISSING])
async def test_the_limit_of_ids_is_reported_first(user: Peer, stream: str) -> None:
    for number in range(256):
        if number != 1:
            await user.declare("s", number)
            await user.subscribe("s", subscription_id=number)
    assert await user.code(c.DeclarePublisher, 0, LONG, stream) == PRECONDITION
    assert await user.code(c.Subscribe, 0, stream, FIRST, 1, NAMED_LONG) == PRECONDITION
