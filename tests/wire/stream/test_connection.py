"""The protocol without sockets: any cut of the bytes, every state, every limit."""

from typing import Any, get_type_hints

import pytest

from streamd.wire.stream import (
    NEED_DATA,
    Connection,
    LocalProtocolError,
    RemoteProtocolError,
    ResponseCode,
    Role,
    State,
    codec,
    commands as c,
    fields as f,
)
from streamd.wire.stream.connection import LOGIN_FRAME_MAX
from streamd.wire.stream.fields import NO_OFFSET
from streamd.wire.stream.states import SENT_BY_CLIENT, SENT_BY_SERVER, TRANSITIONS, next_state
from tests.wire.stream.strategies import KINDS

OK = ResponseCode.OK
LOGIN: list[c.Command] = [
    c.PeerProperties(1, ()),
    c.PeerPropertiesResponse(1, OK),
    c.SaslHandshake(2),
    c.SaslHandshakeResponse(2, OK, ("PLAIN",)),
    c.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
    c.SaslAuthenticateResponse(3, OK),
    c.Tune(1 << 20, 60),
    c.Tune(1 << 20, 60),
    c.Open(4, "/"),
    c.OpenResponse(4, OK),
]
FROM_CLIENT = [0, 2, 4, 7, 8]


def opened(role: Role, frame_max: int | None = 1 << 20) -> Connection:
    connection = Connection(role, frame_max)
    for number, command in enumerate(LOGIN):
        if (number in FROM_CLIENT) is (role is Role.CLIENT):
            connection.send(command)
        else:
            connection.receive_data(codec.encode(command))
            assert connection.next_command() == command
    assert connection.state is State.OPEN
    return connection


def in_state(role: Role, state: State) -> Connection:
    connection = Connection(role, 1 << 20)
    connection.state = state
    return connection


def received(connection: Connection) -> list[c.Command]:
    found = []
    while (command := connection.next_command()) is not NEED_DATA:
        assert not isinstance(command, type(NEED_DATA))
        found.append(command)
    return found


def sample(kind: type[Any]) -> c.Command:
    """One command of a kind, with good codes."""
    hints = get_type_hints(kind, include_extras=True)
    values = {f.U8: 1, f.U16: OK, f.U32: 60, f.U64: 7, f.String: "s", f.OffsetSpec: NO_OFFSET}
    empty: dict[Any, Any] = {f.Rest: b"", f.Bytes: b""}
    return kind(  # type: ignore[no-any-return]
        *(values.get(t, empty.get(t, ())) for t in (hints[name] for name in kind.__struct_fields__))
    )


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("role", Role)
def test_every_pair_of_state_and_command(state: State, role: Role) -> None:
    """Listed pairs move; all others are refused, sent or received, and leave the state alone."""
    own, peers = SENT_BY_CLIENT, SENT_BY_SERVER
    if role is Role.SERVER:
        own, peers = peers, own
    for kind in KINDS:
        command = sample(kind)
        expected = TRANSITIONS.get((state, kind))
        may_send = may_receive = expected is not None
        if kind is c.Tune:
            may_send &= (state is State.TUNING) is (role is Role.CLIENT)
            may_receive &= (state is State.TUNING) is (role is Role.SERVER)
        end = in_state(role, state)
        if may_send and kind in own:
            end.send(command)
            assert end.state is expected
        else:
            with pytest.raises(LocalProtocolError):
                end.send(command)
            assert end.state is state
        end = in_state(role, state)
        end.receive_data(codec.encode(command))
        if state is State.CLOSING and kind not in (c.Close, c.CloseResponse):
            assert end.next_command() is NEED_DATA  # skipped
        elif may_receive and kind in peers:
            assert end.next_command() == command
            assert end.state is expected
        else:
            with pytest.raises(RemoteProtocolError, match="unknown frame"):
                end.next_command()
            assert end.state is state


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (State.JUDGING, c.SaslAuthenticateResponse(1, ResponseCode.AUTHENTICATION_FAILURE)),
        (State.OPENING, c.OpenResponse(1, ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)),
        (State.CHOOSING, c.SaslHandshakeResponse(1, ResponseCode.INTERNAL_ERROR)),
    ],
)
def test_refusing_answers_end_the_login(state: State, command: c.Command) -> None:
    assert next_state(state, command) is State.REFUSED


def test_a_challenge_asks_again() -> None:
    answer = c.SaslAuthenticateResponse(1, ResponseCode.SASL_CHALLENGE, b"more")
    assert next_state(State.JUDGING, answer) is State.AUTHENTICATING


class TestFrameLimit:
    def frame(self, size: int) -> bytes:
        """A StoreOffset whose frame has exactly `size` bytes, its own size not counted."""
        command = c.StoreOffset("r" * (size - 16), "", 0)
        raw = codec.encode(command)
        assert len(raw) == 4 + size
        return raw

    @pytest.mark.parametrize("limit", [100, 4096, 50_000])
    def test_exactly_the_limit_is_taken_and_one_more_is_not(self, limit: int) -> None:
        connection = opened(Role.SERVER, limit)
        connection.receive_data(self.frame(limit))
        assert len(received(connection)) == 1
        connection.receive_data(self.frame(limit + 1)[:4])  # announced, not yet sent
        with pytest.raises(RemoteProtocolError, match="frame too large") as error:
            connection.next_command()
        assert error.value.code == ResponseCode.FRAME_TOO_LARGE

    def test_before_login_the_limit_is_small(self) -> None:
        connection = Connection(Role.SERVER, 1 << 20)
        connection.receive_data((LOGIN_FRAME_MAX + 1).to_bytes(4, "big"))
        with pytest.raises(RemoteProtocolError, match="8193 bytes were announced, 8192"):
            connection.next_command()
        connection = Connection(Role.SERVER, 1 << 20)
        connection.receive_data(LOGIN_FRAME_MAX.to_bytes(4, "big"))
        assert connection.next_command() is NEED_DATA

    @pytest.mark.parametrize(
        ("own", "agreed", "limit"), [(1000, 0, 1000), (1000, 500, 500), (1000, 9999, 1000)]
    )
    def test_what_is_agreed_can_only_lower_it(self, own: int, agreed: int, limit: int) -> None:
        connection = opened(Role.SERVER, own)
        connection.limit_frames(agreed)
        assert connection.frame_max == limit

    def test_a_client_takes_chunks_of_any_size(self) -> None:
        connection = opened(Role.CLIENT, None)
        chunk = c.Deliver(1, bytes(3 << 20))
        connection.receive_data(codec.encode(chunk))
        assert received(connection) == [chunk]
        connection.limit_frames(4096)
        assert connection.frame_max == 4096


def test_commands_sent_before_the_end_was_known_are_ignored() -> None:
    connection = opened(Role.SERVER)
    connection.send(c.Close(1, ResponseCode.UNKNOWN_FRAME, "unknown frame"))
    garbage = (6).to_bytes(4, "big") + b"\x75\x30\0\1xx"
    late = codec.encode(c.Delete(5, "s")) + garbage + codec.encode(c.CloseResponse(1, OK))
    connection.receive_data(late)
    assert received(connection) == [c.CloseResponse(1, OK)]
    assert connection.state is State.CLOSED


def test_the_end_is_found_behind_a_frame_that_is_too_large() -> None:
    """It is not kept, however it is cut, and whatever is in it."""
    connection = opened(Role.SERVER, 5_000)
    connection.receive_data((1 << 24).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError):
        connection.next_command()
    connection.send(c.Close(1, 1, "too large"))
    rest = codec.encode(c.CloseResponse(2, OK)) * 100 + bytes(1 << 24)
    for at in range(0, 1 << 24, 99_999):
        connection.receive_data(rest[at : min(at + 99_999, 1 << 24)])
        assert connection.next_command() is NEED_DATA
        assert len(connection._buffer) < 110_000
    answer = c.CloseResponse(1, OK)
    connection.receive_data(codec.encode(answer))
    assert connection.next_command() == answer
    assert connection.state is State.CLOSED
