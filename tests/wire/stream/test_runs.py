"""Small Publish frames taken together: the same messages, in order, as from the single frames."""

from hypothesis import given, strategies as st

from streamd.wire.stream import NEED_DATA, Connection, ProtocolError, Role, commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.publish import (
    Outgoing,
    decode_entries,
    decode_filtered_entries,
    encode_entries,
    encode_filtered_entries,
    encode_sub_batch,
)
from streamd.wire.stream.states import State


def frame(number: int, body: bytes, value: bytes | None = None, publisher: int = 1) -> bytes:
    message = [Outgoing(number, body, value)]
    if value is None:
        return encode(c.Publish(publisher, 1, encode_entries(message)))
    return encode(c.PublishFiltered(publisher, 1, encode_filtered_entries(message)))


def opened(frame_max: int = 1 << 20) -> Connection:
    connection = Connection(Role.SERVER, frame_max)
    connection.state = State.OPEN
    return connection


def commands(connection: Connection) -> list[c.Command]:
    found = []
    while (command := connection.next_command()) is not NEED_DATA:
        found.append(command)
    return found  # type: ignore[return-value] # NEED_DATA ends the loop


def messages(found: list[c.Command]) -> list[tuple[int, bytes, bytes, bytes]]:
    """Publisher, publishing id, stored bytes and filter value of each message."""
    told = []
    for command in found:
        assert isinstance(command, c.Publish | c.PublishFiltered)
        decode = (
            decode_filtered_entries if isinstance(command, c.PublishFiltered) else decode_entries
        )
        for group in decode(command.entries, command.num_entries).groups:
            position = 0
            for n in range(group.num_entries):
                size = int.from_bytes(group.data[position : position + 4], "big")
                end = position + 4 + size
                value = group.filter_values[n] if group.filter_values else b""
                number = group.publishing_ids[8 * n : 8 * n + 8]
                told.append((command.publisher_id, number, group.data[position:end], value))
                position = end
    return told  # type: ignore[return-value]


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from((b"", b"a", b"bb", b"x" * 300)),
        st.sampled_from((None, None, b"v1", b"v2", b"", b"long")),
        st.sampled_from((1, 1, 1, 2)),
    ),
    max_size=20,
)


@given(MESSAGES, st.lists(st.integers(1, 200), max_size=20))
def test_the_same_messages_however_they_arrive(
    sent: list[tuple[bytes, bytes | None, int]], cuts: list[int]
) -> None:
    frames = [frame(n, body, value, who) for n, (body, value, who) in enumerate(sent)]
    one_by_one = []
    for single in frames:
        connection = opened()
        connection.receive_data(single)
        one_by_one += commands(connection)
    raw = b"".join(frames)
    connection, found = opened(), []
    for size in (*cuts, len(raw)):
        connection.receive_data(raw[:size])
        raw = raw[size:]
        found += commands(connection)
    assert messages(found) == messages(one_by_one)


def test_frames_of_one_publisher_are_one_command() -> None:
    connection = opened()
    connection.receive_data(b"".join(frame(n, b"%03d" % n) for n in range(500)))
    connection.receive_data(b"".join(frame(n, b"x" * n) for n in range(100)))
    connection.receive_data(frame(1, b"", b"v") + frame(2, b"", b"w") + encode(c.Heartbeat()))
    found = commands(connection)
    assert [getattr(command, "num_entries", None) for command in found] == [500, 100, 2, None]


def test_sub_batches_and_larger_frames_stay_alone() -> None:
    connection = opened()
    batch = encode(c.Publish(1, 1, encode_sub_batch(7, 1, 0, 5, b"\0\0\0\1x")))
    two = encode(c.Publish(1, 2, encode_entries([Outgoing(1, b"a"), Outgoing(2, b"b")])))
    connection.receive_data(batch * 3 + frame(1, b"a") + batch + two + frame(2, b"b") * 2)
    found = commands(connection)
    assert [command.num_entries for command in found] == [1, 1, 1, 1, 1, 2, 2]  # type: ignore[union-attr]


def test_a_bad_frame_is_found_where_it_stands() -> None:
    good = frame(1, b"abc")
    bad = bytearray(good)
    bad[24] += 1  # its message is longer than the frame
    for bad_frame in (bytes(bad), b"\0\0\0\1\0", b"\0\xff\xff\xff\0\2\0\1"):
        connection = opened()
        connection.receive_data(good * 5 + bad_frame)
        command = connection.next_command()
        assert isinstance(command, c.Publish)
        assert command.num_entries == 5
        try:
            following = connection.next_command()
        except ProtocolError:
            continue
        assert isinstance(following, c.Publish)
        assert following.num_entries == 1  # its entries are checked by `publish`


@given(st.binary(max_size=80), st.integers(0, 6))
def test_garbage_is_judged_as_without_runs(garbage: bytes, good: int) -> None:
    raw = frame(1, b"abc") * good + garbage

    def outcome(connection: Connection, pieces: list[bytes]) -> tuple[int, str]:
        count = 0
        try:
            for piece in pieces:
                connection.receive_data(piece)
                while (command := connection.next_command()) is not NEED_DATA:
                    count += getattr(command, "num_entries", 1)
        except ProtocolError as error:
            return count, str(error)
        return count, ""

    single = [frame(1, b"abc")] * good + [garbage]
    assert outcome(opened(), [raw]) == outcome(opened(), single)
