"""Small Publish frames taken together: the same messages, in order, as from the single frames."""

from itertools import accumulate, pairwise

from hypothesis import given, strategies as st

from streamd.wire.stream import NEED_DATA, Connection, Role, commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.publish import (
    Outgoing,
    encode_entries,
    encode_filtered_entries,
    encode_sub_batch,
)
from streamd.wire.stream.states import State
from tests.fuzz.wire import stream_commands


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
    expected = [found for one in frames for found in stream_commands([one], Role.SERVER)]
    ends = [0, *accumulate(cuts), sum(map(len, frames))]
    pieces = [b"".join(frames)[start:end] for start, end in pairwise(ends)]
    assert stream_commands(pieces, Role.SERVER) == expected


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
