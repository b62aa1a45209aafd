"""What the commands of one connection work with."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias

from segments import Log, OffsetSpec, Start
from segments.codec import MAX_REFERENCE_SIZE
from streamd.auth.users import Rights, UserDirectory
from streamd.broker.broker import Broker
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import ProtocolTraffic
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.stream.delivery import Delivery
from streamd.engine import Engine
from streamd.net.outbox import Outbox
from streamd.net.turns import Stepwise
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.wire.stream import ResponseCode, codec, commands as c
from streamd.wire.stream.fields import OffsetSpecification

# False when the command has to wait: then nothing was done.
HandlersAtOnce: TypeAlias = dict[type[Any], Callable[[Any], bool]]
Handlers: TypeAlias = dict[type[Any], Callable[[Any], Awaitable[None]]]


class Notices:
    """Which streams are gone, of those that a client uses, while its own deletion is answered.

    RabbitMQ answers first. A client that reads answers in the task which takes what it is told
    would wait for its own.
    """

    def __init__(self) -> None:
        self.held: list[str] | None = None
        self.deleted: str | None = None  # the stream that is; None for those of a super stream


class Context(NamedTuple):
    """One connection as its commands see it.

    Attributes:
        engine: carries out operations.
        address: host and port to announce.
        is_tls: the connection is inside TLS.
        is_node: another node asks for one of its clients: it is not asked back.
    """

    broker: Broker
    engine: Engine
    directory: UserDirectory
    host: VirtualHost
    rights: Rights
    outbox: Outbox
    delivery: Delivery
    address: tuple[str, int]
    is_tls: bool
    traffic: ProtocolTraffic
    notices: Notices
    is_node: bool = False

    def answer(self, command: c.ServerCommand) -> None:
        """Send a command to the client; an error is counted."""
        code = getattr(command, "code", ResponseCode.OK)
        if code != ResponseCode.OK:
            self.traffic.errors[code] += 1
        self.outbox.put(codec.encode(command))

    def tell_gone(self, stream: str) -> None:
        """What used a stream has ended; the client is told, behind what it is being answered."""
        held = self.notices.held
        if held is not None and self.notices.deleted in (None, stream):
            held.append(stream)
        else:
            self.answer(c.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, stream))

    @contextmanager
    def deleting(self, command: c.Delete | c.DeleteSuperStream) -> Iterator[None]:
        """A deletion that the client has asked for is carried out, and answered, in this block."""
        held = self.notices.held = []
        self.notices.deleted = command.stream if isinstance(command, c.Delete) else None
        try:
            yield
        finally:
            self.notices.held = None
            for stream in held:
                self.tell_gone(stream)

    async def answer_in_turns(self, command: c.ServerCommand) -> None:
        """Send a command with long arrays; others have their turn while it is encoded."""
        self.outbox.put(await Stepwise(codec.encode_in_steps(command)).finish())

    @asynccontextmanager
    async def readable(self, name: Name) -> AsyncIterator[tuple[Stream, Log]]:
        """A stream that the user may read, with its log, which stays open in this block.

        Raises:
            Refused: there is no such right, also when it went while the log was opened, or, at the
                end of the block, while something was read; no such stream; or its log cannot be
                opened.
        """
        self.rights.require(Right.READ, name)
        stream = self.host.find(name)
        async with stream.opened() as log:
            self.rights.require(Right.READ, name)
            yield stream, log
            self.rights.require(Right.READ, name)


def check_reference(reference: str) -> None:
    """Raise Refused when the name of a publisher or consumer is too long."""
    if len(reference.encode()) > MAX_REFERENCE_SIZE:
        raise Refused(Reason.PRECONDITION_FAILED, "reference longer than 255 bytes")


def offset_spec(sent: OffsetSpecification) -> OffsetSpec:
    """Where to begin, as the log takes it.

    Raises:
        Refused: its type is unknown.
    """
    try:
        return OffsetSpec(Start(sent.type), sent.value)
    except ValueError:
        details = f"offset type is {sent.type}, expected 1 to 5"
        raise Refused(Reason.PRECONDITION_FAILED, details) from None
