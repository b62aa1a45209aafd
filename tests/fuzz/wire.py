"""The protocols as plain functions: bytes in, commands out, no server. Tens of thousands a second.

Whatever the bytes are, only the protocol's own error may come out; however they are cut into
pieces, the same commands do; what was read is written and read again as the same.
"""

from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

from streamd.wire.amqp091 import connection as amqp, methods as m
from streamd.wire.amqp091.codec import FRAME_END, decode_method, encode_method, method_frame
from streamd.wire.amqp091.deliver import DeliverWriter
from streamd.wire.amqp091.errors import ChannelFault, ConnectionFault
from streamd.wire.amqp091.messages.from_amqp10 import delivered
from streamd.wire.amqp091.messages.to_amqp10 import stored_body, stored_head
from streamd.wire.amqp091.properties import decode_properties, encode_properties
from streamd.wire.amqp091.states import State as AmqpState
from streamd.wire.amqp10 import connection as amqp10, errors as amqp10_errors, performatives as p
from streamd.wire.amqp10.codec import decode_composite, encode_composite, frame
from streamd.wire.amqp10.deliver import TransferWriter
from streamd.wire.amqp10.messages import bare_position, check_bare, stored_head as stored_head10
from streamd.wire.amqp10.states import State as Amqp10State
from streamd.wire.stream import (
    NEED_DATA,
    Connection,
    RemoteProtocolError,
    Role,
    State,
    codec,
    commands as c,
)
from streamd.wire.stream.publish import decode_entries, decode_filtered_entries
from tests.fuzz.frames import stream_frames

FRAME_MAX = 1 << 16
_OPEN_CHANNEL = method_frame(1, m.ChannelOpen())
_BEGIN = frame(0, p.Begin(None, 0, 100, 100))
_OFFSET = (41).to_bytes(8, "big")


class Broken(Exception):
    """Something that must hold does not."""


def cut(data: bytes, arrival: int) -> list[bytes]:
    """A few pieces."""
    chance = Random(arrival)
    places = sorted(chance.randint(0, len(data)) for _ in range(1 + arrival % 4))
    return [data[a:b] for a, b in pairwise([0, *places, len(data)])]


# -- the stream protocol


def try_stream(data: bytes) -> None:
    """What an open connection reads, as the server, or as a client when the octet is odd."""
    arrival, data = data[0], data[1:]
    role = Role.CLIENT if arrival & 1 else Role.SERVER
    at_once = stream_commands([data], role)
    in_pieces = stream_commands(cut(data, arrival >> 1), role)
    if at_once != in_pieces:
        raise Broken(f"{at_once} at once, {in_pieces} in pieces")


def stream_commands(pieces: list[bytes], role: Role) -> list[Any]:
    """All commands, and the error that they end with; messages are what counts of Publish."""
    connection = Connection(role, FRAME_MAX)
    connection.state = State.OPEN
    found: list[Any] = []
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (command := connection.next_command()) is not NEED_DATA:
                assert not isinstance(command, type(NEED_DATA))
                if isinstance(command, c.Publish | c.PublishFiltered):
                    found += _entries(command)
                else:
                    _check_round_trip(command)
                    found.append(command)
    except RemoteProtocolError as error:
        found.append(error.code)
    return found


def _check_round_trip(command: c.Command) -> None:
    again = codec.decode(codec.encode(command)[codec.SIZE_BYTES :])
    if again != command:
        raise Broken(f"{command} becomes {again}")


def _entries(command: c.Publish | c.PublishFiltered) -> list[Any]:
    """The messages of a Publish, one by one: frames that arrive together become one."""
    is_filtered = isinstance(command, c.PublishFiltered)
    decode = decode_filtered_entries if is_filtered else decode_entries
    try:
        decoded = decode(command.entries, command.num_entries)
    except RemoteProtocolError as error:
        return [(command.publisher_id, error.code)]
    found: list[Any] = []
    for group in decoded.groups:
        ids = [group.publishing_ids[at : at + 8] for at in range(0, len(group.publishing_ids), 8)]
        values = group.filter_values or [b""] * group.num_entries
        entries = [group.data] if group.num_entries == 1 else stream_frames(group.data)
        rows = zip(ids, values, entries, strict=True)  # as many of each
        found += [(command.publisher_id, is_filtered, *row) for row in rows]
    refused = decoded.refused_ids
    return [*found, (command.publisher_id, refused)] if refused else found


# -- AMQP 0-9-1


def try_amqp(data: bytes) -> None:
    """What an open connection with an open channel reads."""
    arrival, data = data[0], data[1:]
    at_once = _amqp_events([data])
    in_pieces = _amqp_events(cut(data, arrival))
    if repr(at_once) != repr(in_pieces):  # a number that is not a number equals nothing
        raise Broken(f"{at_once} at once, {in_pieces} in pieces")
    for event in at_once:
        if isinstance(event, amqp.Content):
            _check_content(event)


def _amqp_events(pieces: list[bytes]) -> list[Any]:
    connection = amqp.Connection()
    connection.state = AmqpState.OPEN
    found: list[Any] = []
    connection.receive_data(_OPEN_CHANNEL)
    assert len(list(connection.events())) == 1
    try:
        for piece in pieces:
            connection.receive_data(piece)
            for event in connection.events():
                if isinstance(event, amqp.Request):
                    _check_method(event.method)
                if event is not None:
                    found.append(event)
    except ConnectionFault as fault:
        found += [fault.code, fault.method]
    return found


def _check_method(method: m.Method) -> None:
    try:
        payload = encode_method(method)
    except ValueError:
        raise Broken(f"{method} was read and cannot be written") from None
    if repr(decode_method(payload)) != repr(method):
        raise Broken(f"{method} becomes {decode_method(payload)}")


def _check_content(event: amqp.Content) -> None:
    """What is stored of a message is delivered, with properties that can be read."""
    method = event.method
    try:
        head = stored_head(method.exchange, method.key, event.properties)
        body = stored_body(event.body or b"", is_encoded=head.is_encoded)
    except (ChannelFault, ConnectionFault):
        return
    given = decode_properties(event.properties)
    if repr(decode_properties(encode_properties(given))) != repr(given):
        raise Broken(f"{given} is not the same when it is written and read")
    found = _deliver(head.sections + body)
    if not head.is_encoded and found != (event.body or b""):
        raise Broken(f"the body {event.body!r} becomes {found!r}")


def _deliver(raw: bytes) -> bytes:
    message = delivered(raw)
    decode_properties(message.head.before + _OFFSET + message.head.after)
    frames = DeliverWriter(1, "c", "s", 4096).frames(1, 41, message)
    if frames[-1] != FRAME_END:
        raise Broken("a delivery is not framed")
    return message.body


# -- AMQP 1.0


def try_amqp10(data: bytes) -> None:
    """What an open connection with a session and a link that has credit reads."""
    arrival, data = data[0], data[1:]
    at_once = _amqp10_events([data])
    in_pieces = _amqp10_events(cut(data, arrival))
    if repr(at_once) != repr(in_pieces):
        raise Broken(f"{at_once} at once, {in_pieces} in pieces")


def _amqp10_events(pieces: list[bytes]) -> list[Any]:
    connection = amqp10.Connection()
    connection.state = Amqp10State.OPEN
    connection.open()
    connection.receive_data(_BEGIN)
    assert len(list(connection.events())) == 1
    session = connection.sessions[0]
    session.attach(p.Attach("x", 0, p.SENDER)).credit = 10
    found: list[Any] = []
    try:
        for piece in pieces:
            connection.receive_data(piece)
            for event in connection.events():
                found += _told(connection, event)
    except amqp10_errors.ConnectionFault as fault:
        found.append(str(fault))
    return found


def _told(connection: amqp10.Connection, event: amqp10.Event | None) -> list[Any]:
    """An event, and what the server does after it."""
    match event:
        case None:
            return []
        case amqp10.Messages(session, _, arrived):
            for message in arrived:
                _check_message(message.raw)
            return (
                [(session.channel, *arrived)]
                if len(arrived) == 1
                else [(session.channel, message) for message in arrived]
            )
        case amqp10.Broken(session, link, fault):
            if link is None:
                connection.end_session(session, fault)
            else:
                connection.detach(session, link, fault)
            return [str(fault)]
        case amqp10.Detached(_, _, detach):
            return [detach]
    channel, performative = event
    again, _ = decode_composite(encode_composite(performative))
    if repr(again) != repr(performative):
        raise Broken(f"{performative} becomes {again}")
    if isinstance(performative, p.Attach) and channel in connection.sessions:
        with suppress(amqp10_errors.Fault):
            connection.sessions[channel].attach(performative)
    return [event]


def _check_message(raw: bytes) -> None:
    """What is stored of a message is delivered, its bare message as it was."""
    try:
        at = bare_position(raw)
        head = stored_head10("e", "k", raw[:at])
        check_bare(raw, at)
    except amqp10_errors.LinkFault:
        return
    if not _deliver10(head.sections + raw[at:]).endswith(raw[at:]):
        raise Broken(f"{raw[at:]!r} is not delivered as it was")


def _deliver10(raw: bytes) -> bytes:
    whole = TransferWriter(0, 0, "q", 1 << 30, is_settled=False).write(0, 41, raw)
    assert isinstance(whole, bytes)
    transfer, end = decode_composite(whole[8:])
    if not isinstance(transfer, p.Transfer) or int.from_bytes(whole[:4], "big") != len(whole):
        raise Broken("a delivery is not framed")
    return whole[8 + end :]


# -- stored messages, which anybody may have published as they like


def try_message(data: bytes) -> None:
    """A message of a stream, as consumers of both AMQPs get it."""
    _deliver(data[1:])
    _deliver10(data[1:])
