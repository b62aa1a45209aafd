"""The server's half of a connection: bytes in any pieces, windows, credit, and what is wrong."""

import contextlib
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from streamd.wire.amqp10 import connection as connection_module, performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    HEARTBEAT_FRAME,
    SASL_HEADER,
    frame,
    sasl_frame,
)
from streamd.wire.amqp10.connection import (
    Broken,
    Connection,
    Detached,
    Event,
    Messages,
    NotAmqp10,
    Request,
)
from streamd.wire.amqp10.errors import Condition, ConnectionFault
from streamd.wire.amqp10.session import Link, Session, serial_gap
from streamd.wire.amqp10.states import State
from tests.wire.amqp10.strategies import of_kind


def opened() -> Connection:
    """An open connection with session 0, whose link 0 has credit."""
    connection = Connection()
    feed(connection, SASL_HEADER + sasl_frame(p.SaslInit("PLAIN")))
    connection.authenticated()
    feed(connection, AMQP_HEADER + frame(0, p.Open("x")) + frame(0, p.Begin(None, 0, 9, 9)))
    connection.open()
    attach = p.Attach("out", 0, p.SENDER, initial_delivery_count=0)
    feed(connection, frame(0, attach))
    connection.sessions[0].attach(attach).credit = 1_000
    return connection


def feed(connection: Connection, *pieces: bytes) -> list[Event]:
    """What comes of these bytes; what comes of nothing, or a part of a message, is left out."""
    found: list[Event] = []
    for piece in pieces:
        connection.receive_data(piece)
        for event in connection.events():
            if event is not None and not (isinstance(event, Messages) and not event.arrived):
                found.append(event)
    return found


def transfer(number: int, payload: bytes, **more: Any) -> bytes:
    return frame(0, p.Transfer(0, number, b"t", 0, False)._replace(**more), payload)


SCRIPT = b"".join(
    (
        transfer(0, b"zero"),
        HEARTBEAT_FRAME,
        transfer(1, b"one"),
        transfer(2, b"two"),
        transfer(3, b"th", more=True),
        transfer(3, b"r", more=True),
        frame(0, p.Transfer(0), b"ee"),
        frame(0, p.Flow(0, 9, 7, 9, 0, echo=True)),
        transfer(4, b"four"),
        transfer(5, b"settled", settled=True),
        transfer(6, b"settled", settled=True),
        transfer(7, b"away", more=True),
        frame(0, p.Transfer(0, aborted=True)),
        frame(0, p.Disposition(True, 1, 2, True, p.Accepted())),
        frame(0, p.Detach(0, True)),
        frame(0, p.End()),
        frame(0, p.Close()),
    )
)


def told(events: Iterable[Event]) -> list[object]:
    """Events without the way in which messages were put together."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Messages):
            found += event.arrived
        elif isinstance(event, Detached):
            found.append(event.performative)
        else:
            assert isinstance(event, Request), event
            found.append(event.performative)
    return found


WHOLE = told(feed(opened(), SCRIPT))


def test_all_of_it() -> None:
    messages = [one for one in WHOLE if hasattr(one, "raw")]
    assert messages == [
        *((number, False, word) for number, word in enumerate((b"zero", b"one", b"two", b"three"))),
        *((4, False, b"four"), (5, True, b"settled"), (6, True, b"settled")),
    ]
    assert type(WHOLE[-1]) is p.Close


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=6).map(sorted))
def test_in_any_pieces(cuts: list[int]) -> None:
    places = [0, *cuts, len(SCRIPT)]
    pieces = [SCRIPT[a:b] for a, b in pairwise(places)]
    assert told(feed(opened(), *pieces)) == WHOLE


@given(st.integers(0, len(SCRIPT) - 1), st.binary(max_size=4))
def test_whatever_comes_instead(at: int, data: bytes) -> None:
    """It goes on, or says what is wrong; nothing else is raised, and then all but Close is late."""
    connection = opened()
    with contextlib.suppress(ConnectionFault):
        feed(connection, SCRIPT[:at] + data + SCRIPT[at + len(data) :])
        return
    connection.close()
    assert feed(connection, SCRIPT) == []
    assert connection.state in (State.CLOSING, State.CLOSED)


@pytest.mark.parametrize("header", [b"AMQP\0\0\x09\1", b"AMQP\3\1\0\1", b"GET / HT"])
def test_another_header(header: bytes) -> None:
    with pytest.raises(NotAmqp10):
        feed(Connection(), header)


def test_after_sasl_another_header_is_wrong() -> None:
    connection = Connection()
    feed(connection, SASL_HEADER + sasl_frame(p.SaslInit("PLAIN")))
    assert feed(connection, frame(0, p.Open("early"))) == [], "nothing is looked at meanwhile"
    connection.authenticated()
    with pytest.raises(NotAmqp10):
        connection.has_greeted()


@given(of_kind(p.Flow))
def test_any_flow(flow: p.Flow) -> None:
    """Credit and window stay within what numbers there are."""
    connection = opened()
    session = connection.sessions[0]
    for event in feed(connection, frame(0, flow._replace(properties=None))):
        if isinstance(event, Broken):
            assert event.fault.condition in (
                Condition.WINDOW_VIOLATION,
                Condition.UNATTACHED_HANDLE,
            )
    assert session.outgoing >= 0
    link = session.links[0]
    link.take_flow(flow)
    assert 0 <= link.credit <= p.MAX_UINT


@given(st.integers(0, p.MAX_UINT), st.integers(-(1 << 31), (1 << 31) - 1))
def test_serial_numbers(first: int, gap: int) -> None:
    assert serial_gap(first, (first + gap) & p.MAX_UINT) == gap


@given(st.integers(0, p.MAX_UINT), st.integers(0, 1_000), st.integers(0, 1_000))
def test_credit_is_counted_from_what_the_receiver_has_seen(
    count: int, sent: int, credit: int
) -> None:
    link = Link(p.Attach("in", 0, p.RECEIVER))
    link.delivery_count = (count + sent) & p.MAX_UINT
    link.take_flow(p.Flow(0, 1, 0, 1, 0, count, credit))
    assert link.credit == max(0, credit - sent)


@given(st.integers(0, p.MAX_UINT), st.integers(0, 500), st.integers(0, 500))
def test_the_window_is_counted_from_what_the_peer_has_seen(
    seen: int, sent: int, window: int
) -> None:
    session = Session(0, p.Begin(None, 0, 0, 0))
    session.next_outgoing_id = (seen + sent) & p.MAX_UINT
    session.take_flow(p.Flow(seen, window, 0, 0))
    assert session.outgoing == max(0, window - sent)


def test_unfinished_messages_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNFINISHED_BYTES", 1_000)
    connection = opened()
    part = transfer(0, bytes(400), more=True)
    assert feed(connection, part * 2) == []
    (broken,) = feed(connection, part)
    assert isinstance(broken, Broken)
    assert broken.fault.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    connection.end_session(broken.session, broken.fault)
    assert connection._unfinished == 0


def test_what_was_dropped_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNFINISHED_BYTES", 1_000)
    connection = opened()
    attach = p.Attach("out", 0, p.SENDER)
    for number in range(20):
        end = frame(0, p.Transfer(0, aborted=True)) if number % 2 else frame(0, p.Detach(0)) + b""
        feed(connection, transfer(number, bytes(900), more=True) + end)
        if 0 not in connection.sessions[0].links:
            connection.sessions[0].attach(attach).credit = 10
    assert connection._unfinished == 0


def test_a_message_that_never_ends_takes_window() -> None:
    connection = opened()
    events = feed(connection, *[transfer(0, b"x", more=True)] * 401)
    assert [type(event) for event in events] == [Broken]


def test_many_messages_come_together() -> None:
    events = feed(opened(), b"".join(transfer(n, b"x") for n in range(300)))
    assert [len(event.arrived) for event in events if isinstance(event, Messages)] == [256, 44]


def test_frames_beyond_the_limit_are_dropped_while_it_is_closed() -> None:
    connection = opened()
    connection.close()
    large = (10_000_000).to_bytes(4, "big") + b"\2\0\0\0"
    for _ in range(10):
        feed(connection, large + bytes(100_000))
        large = b""
    assert len(connection._buffer) <= 100_000


@pytest.mark.parametrize("size", [0, 2])
def test_a_message_in_tiny_pieces(size: int) -> None:
    """Each piece on its own would take twenty times its size."""
    connection = opened()
    session = connection.sessions[0]
    feed(connection, transfer(0, b"xx", more=True))
    piece = frame(0, p.Transfer(0, more=True), b"ab"[:size])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            session.incoming = 400  # as a flow grants it
            assert feed(connection, piece * 300) == []
        connection.receive_data(b"")
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 4 * 30_000 * size + 50_000


def test_as_much_credit_as_there_can_be() -> None:
    link = Link(p.Attach("in", 0, p.RECEIVER))
    link.take_flow(p.Flow(0, 1, 0, 1, 0, 0, p.MAX_UINT))
    assert link.credit > 1_000_000


def test_each_frame_that_asks_for_nothing_can_be_counted() -> None:
    """Or a read full of them would be looked through in one go."""
    nothing = HEARTBEAT_FRAME + frame(7, p.Flow(0, 1, 0, 1)) + frame(0, p.Detach(9))
    connection = opened()
    connection.receive_data(nothing)
    assert list(connection.events()) == [None, None, None]
    connection.close()
    connection.receive_data(nothing + frame(0, p.Close()))
    assert list(connection.events()) == [None] * 4
    assert connection.is_closed


def test_what_is_wrong_comes_behind_the_messages_before_it() -> None:
    for ends_turn in (False, True):
        connection = opened()
        connection.sessions[0].links[0].credit = 1
        connection.receive_data(transfer(0, b"x") + transfer(1, b"x"))
        first = [next(connection.events())] if ends_turn else []
        assert [type(event) for event in (*first, *connection.events())] == [Messages, Broken]
