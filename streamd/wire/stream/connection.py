"""One connection without its socket: bytes in, commands out, and the other way round.

`receive_data` takes bytes as they come, cut anywhere; `next_command` gives the next whole command
or NEED_DATA. `send` turns a command into bytes. Both keep the state, so an illegal command is
noticed on whichever side it is.
"""

import struct
from enum import Enum, auto

from streamd.wire.stream import codec, commands as c
from streamd.wire.stream.errors import LocalProtocolError, frame_too_large, unknown_frame
from streamd.wire.stream.runs import publish_run
from streamd.wire.stream.states import (
    SENT_BY_CLIENT,
    SENT_BY_SERVER,
    TUNE_BY_CLIENT,
    TUNE_BY_SERVER,
    State,
    next_state,
)

LOGIN_FRAME_MAX = 8192  # before the connection is open nobody needs more
_SIZE = struct.Struct(">I")


class Role(Enum):
    """Which end this is."""

    CLIENT = auto()
    SERVER = auto()


class NeedData(Enum):
    """Type of NEED_DATA."""

    NEED_DATA = auto()


NEED_DATA = NeedData.NEED_DATA


class Connection:
    """One end of a connection.

    The server's end gives small Publish frames that arrived together as one; see `runs`.

    Args:
        role: which end.
        frame_max: bytes a frame may have when the connection is open, without its size; what the
            peer answers in Tune can only lower it. None for no limit (a client: chunks may be
            larger than any limit that was agreed).

    Attributes:
        state: how far it has come.
        frame_size: bytes of the last frame that was received whole, or of those that are one.
    """

    def __init__(self, role: Role, frame_max: int | None) -> None:
        self.state = State.CONNECTED
        self.frame_size = 0
        self._role = role
        self._frame_max = frame_max
        self._received_kinds = SENT_BY_CLIENT if role is Role.SERVER else SENT_BY_SERVER
        self._sent_kinds = SENT_BY_SERVER if role is Role.SERVER else SENT_BY_CLIENT
        self._buffer = bytearray()
        self._position = 0
        self._unread = 0  # bytes still to come of a frame that is not looked at

    @property
    def frame_max(self) -> int | None:
        """Bytes the next frame may have, without its size; None for no limit."""
        if self.state is State.OPEN or self.state is State.CLOSING:
            return self._frame_max
        return min(LOGIN_FRAME_MAX, self._frame_max or LOGIN_FRAME_MAX)

    def limit_frames(self, frame_max: int) -> None:
        """Apply the agreed limit; 0 means that the peer sets none."""
        if frame_max:
            limit = self._frame_max
            self._frame_max = frame_max if limit is None else min(frame_max, limit)

    def take_frames(self, frame_max: int) -> None:
        """Take frames of so many bytes, whatever the limit was."""
        self._frame_max = frame_max

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the peer."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        if self._unread:
            data = self._without_unread(data)
        self._buffer += data

    def _without_unread(self, data: bytes) -> bytes:
        rest = data[self._unread :]
        self._unread -= len(data) - len(rest)
        return rest

    def forget(self) -> None:
        """Give back what was received: the connection has ended."""
        self._buffer, self._position = bytearray(), 0

    def next_command(self) -> c.Command | NeedData:
        """The next command that was received whole, or NEED_DATA.

        Raises:
            RemoteProtocolError: the bytes are not a command, too many, or not legal now. The
                connection cannot go on.
        """
        if self._position == len(self._buffer):
            return NEED_DATA
        if self.state is State.OPEN and self._role is Role.SERVER:
            run = publish_run(self._buffer, self._position, self._frame_max)
            if run is not None:
                self.frame_size = run.end - self._position
                self._position = run.end
                return run.command
        while (frame := self._next_frame()) is not None:
            if self.state is State.CLOSING and not _ends_connection(frame):
                continue  # sent before the peer learned of the end
            return self._accept(codec.decode(frame))
        return NEED_DATA

    def _accept(self, command: c.Command) -> c.Command:
        kind = type(command)
        if kind not in self._received_kinds or not self._may_tune(command, own=False):
            raise unknown_frame(f"{kind.__name__} must not be sent by the peer")
        state = next_state(self.state, command)
        if state is None:
            raise unknown_frame(f"{kind.__name__} while {self.state.name.lower()}")
        self.state = state
        return command

    def _next_frame(self) -> bytes | None:
        start = self._position + codec.SIZE_BYTES
        if start > len(self._buffer):
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._position)
        end = start + size
        limit = self.frame_max
        if limit is not None and size > limit:  # at once, not when the bytes are there
            if self.state is not State.CLOSING:
                raise frame_too_large(size, limit)
            return self._skip(end)
        if end > len(self._buffer):
            return None
        self._position, self.frame_size = end, size
        return bytes(memoryview(self._buffer)[start:end])

    def _skip(self, end: int) -> bytes:
        """Take a frame that is too large, which ends at `end`, without keeping it."""
        self._position = min(end, len(self._buffer))
        self._unread = end - self._position
        return b""

    def _may_tune(self, command: c.Command, *, own: bool) -> bool:
        """Tune is sent by both ends, each in its turn."""
        if not isinstance(command, c.Tune):
            return True
        by_server = (self._role is Role.SERVER) is own
        return self.state is (TUNE_BY_SERVER if by_server else TUNE_BY_CLIENT)

    def send(self, command: c.Command) -> bytes:
        """The bytes of `command`, to be sent before anything else is asked of this connection.

        Raises:
            LocalProtocolError: it is not legal now.
            ValueError: a string in it is too long.
        """
        kind = type(command)
        state = next_state(self.state, command)
        if state is None or kind not in self._sent_kinds or not self._may_tune(command, own=True):
            raise LocalProtocolError(f"{kind.__name__} while {self.state.name.lower()}")
        data = codec.encode(command)
        self.state = state
        return data


def _ends_connection(frame: bytes) -> bool:
    key = int.from_bytes(frame[:2], "big")
    return key in (c.Close.KEY, c.CloseResponse.KEY)
