"""What goes over the hop, as bytes: no sockets, no clock, no event loop.

A frame is its size, 4 bytes, and a record in msgpack. A door asks, any number of things at once,
and each has a number of its own; the engine answers each of them once, in any order. Users enter
and leave: what is asked for one names its session. Session 0 is the door itself.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from streamd.operations.errors import Busy, NoSuch, Reason, Refused, ReservedName
from streamd.operations.names import Name

_SIZE = struct.Struct(">I")
MAX_FRAME = 64 << 20  # bytes; definitions of a large cluster are 16 MiB
DOOR = 0  # the session of the door itself


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


class Ask(_Message, frozen=True, array_like=True, tag="ask"):
    """Carry out an operation for a session."""

    number: int
    session: int
    operation: str
    fields: msgspec.Raw


class Cancel(_Message, frozen=True, array_like=True, tag="cancel"):
    """Nobody waits for this answer any more."""

    number: int


class Enter(_Message, frozen=True, array_like=True, tag="enter"):
    """Let a user in who comes from the address `host`."""

    number: int
    name: Name
    password: bytes
    host: str

    def __repr__(self) -> str:
        return f"Enter({self.number}, {self.name!r}, <secret>)"


class Leave(_Message, frozen=True, array_like=True, tag="leave"):
    """Forget a session."""

    session: int


class Answered(_Message, frozen=True, array_like=True, tag="answered"):
    """The answer to an operation."""

    number: int
    answer: msgspec.Raw


class Entered(_Message, frozen=True, array_like=True, tag="entered"):
    """The session of a user, and its tags; session 0: name or password is wrong."""

    number: int
    session: int
    tags: tuple[str, ...]


_KINDS = {kind.__name__: kind for kind in (Busy, NoSuch, ReservedName)}


def kind_of(refused: Refused) -> str:
    """Which of those it is that have a class of their own; empty for another one."""
    kind = type(refused).__name__
    return kind if kind in _KINDS else ""


def refusal(reason: Reason, details: str, kind: str) -> Refused:
    """What was refused elsewhere; see `kind_of`."""
    return _KINDS[kind](details) if kind in _KINDS else Refused(reason, details)


class Failed(_Message, frozen=True, array_like=True, tag="failed"):
    """An operation is refused; see `Refused`. An empty reason: it has failed, see the log."""

    number: int
    reason: str
    details: str
    kind: str = ""

    @classmethod
    def of(cls, number: int, refused: Refused) -> "Failed":
        """The refusal of a request."""
        return cls(number, refused.reason.name, refused.details, kind_of(refused))

    def error(self) -> Refused:
        """The same, to be raised on this side."""
        return refusal(Reason[self.reason], self.details, self.kind)


class Changed(_Message, frozen=True, array_like=True, tag="changed"):
    """A session's rights are others; `ended` says why it counts no more, if it does."""

    session: int
    tags: tuple[str, ...]
    ended: str


FromDoor: TypeAlias = Ask | Cancel | Enter | Leave
FromEngine: TypeAlias = Answered | Entered | Failed | Changed
_DECODER = msgspec.msgpack.Decoder(FromDoor | FromEngine)


def _plain(value: object) -> object:
    """What msgspec does not know by itself."""
    if isinstance(value, Mapping):  # one that cannot be changed
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} cannot go over the hop")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
encode = _ENCODER.encode


def answer_bytes(answer: object) -> bytes:
    """An answer as it is sent; halves of characters, which clients may bring, are shown as ?.

    Args:
        answer: plain records and what Python has; see `streamd.operations`.
    """
    try:
        return encode(answer)
    except UnicodeEncodeError:
        return encode(_whole(msgspec.to_builtins(answer, enc_hook=_plain, builtin_types=(bytes,))))


def _whole(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list() | tuple():
            return [_whole(item) for item in value]
        case dict():
            return {_whole(key): _whole(item) for key, item in value.items()}
    return value


class HopError(Exception):
    """The other side has sent what it never sends; one sentence."""


def frame(message: FromDoor | FromEngine) -> bytes:
    """A message as it is sent.

    Raises:
        HopError: it is too large.
    """
    data = encode(message)
    if len(data) > MAX_FRAME:
        raise HopError(f"a message has {len(data):,} bytes, expected at most {MAX_FRAME:,}")
    return _SIZE.pack(len(data)) + data


class Frames:
    """Messages out of the bytes that arrive."""

    def __init__(self) -> None:
        self._data = bytearray()

    def receive(self, data: bytes) -> Iterator[FromDoor | FromEngine]:
        """The messages that are complete with these bytes.

        Raises:
            HopError: they are none.
        """
        self._data += data
        at = 0
        while len(self._data) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._data, at)
            if size > MAX_FRAME:
                raise HopError(f"a frame has {size:,} bytes, expected at most {MAX_FRAME:,}")
            end = at + _SIZE.size + size
            if end > len(self._data):
                break
            try:
                yield _DECODER.decode(bytes(self._data[at + _SIZE.size : end]))
            except msgspec.MsgspecError as error:
                raise HopError(f"a frame cannot be read: {error}") from None
            at = end
        del self._data[:at]
