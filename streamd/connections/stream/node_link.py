"""A connection of the stream protocol from one node of a cluster to another, for one user.

A node that does not lead the cluster has requests carried out there that change what is declared.
The other node sees the user, and checks its rights: that it is a node who asks for it, the secret
of the cluster proves (broker/nodes/secret.py).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import trio

from streamd.auth.users import NODE
from streamd.broker.nodes.secret import proof
from streamd.net import passing
from streamd.net.transport import Transport, TransportClosed
from streamd.operations.cluster import LeaderFacts
from streamd.operations.errors import Reason, Refused
from streamd.wire.stream import NEED_DATA, Connection, ProtocolError, Role, codec, commands as c
from streamd.wire.stream.fields import Pair

PRODUCT, NONCE = "streamd node", "node_nonce"

_LOGIN_SECONDS, ANSWER_SECONDS = 10.0, 30.0
FRAME_MAX = 256 << 20  # bytes: what came over AMQP may be larger than a frame of clients
Answer = TypeVar("Answer")


def _ignored(_command: c.Command) -> None:
    """Nobody minds what is said unasked."""


class _Waiting:
    """Somebody waits for an answer.

    Args:
        number: the correlation id that the answer is to have.
        answered: called with it.
    """

    def __init__(self, number: int, answered: Callable[[Any], None]) -> None:
        self.answer: Any = None
        self.is_over = trio.Event()
        self._number, self._answered = number, answered

    def take(self, answer: Any) -> None:  # noqa: ANN401 - of any kind
        """It is there."""
        fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
        self.answer = type(answer)(**(fields | {"correlation_id": self._number}))
        self._answered(self.answer)
        self.is_over.set()


class NodeLink:
    """An open connection; made by `open_link`. Several tasks may use it.

    Args:
        take: hears what is said unasked.
        room: returns when `take` may be called again.

    Attributes:
        is_lost: it is gone.
    """

    def __init__(
        self,
        transport: Transport,
        take: Callable[[c.Command], None],
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self._room = room
        self.is_lost = False
        self._take, self._lost = take, trio.Event()
        self._transport = transport
        self._wire = Connection(Role.CLIENT, None)
        self._last, self._sending = 0, trio.Lock()
        self._waiting: dict[int, _Waiting] = {}

    async def log_in(self, secret: str, user: str, virtual_host: str) -> None:
        """Go through the login.

        Raises:
            Refused: the other one does not let us in.
            TransportClosed: it is gone.
        """
        answer = await self._step(c.PeerProperties, (Pair("product", PRODUCT),))
        nonce = dict(answer.properties).get(NONCE, "")
        await self._step(c.SaslHandshake)
        words = f"{user}\0{NODE}\0{proof(secret, nonce, user)}"
        await self._step(c.SaslAuthenticate, "PLAIN", words.encode())
        while not isinstance(await self._next(), c.Tune):
            pass
        await self._transport.send(self._wire.send(c.Tune(FRAME_MAX, 0)))
        await self._step(c.Open, virtual_host)

    async def _step(self, kind: type[Any], *fields: object) -> Any:  # noqa: ANN401 - of any kind
        self._last += 1
        await self._transport.send(self._wire.send(kind(self._last, *fields)))
        answer: Any = await self._next()
        if answer.code != 1:
            details = f"the node that leads answers {kind.__name__} with {answer.code}"
            raise Refused(Reason.NOT_AVAILABLE, details)
        return answer

    async def _next(self) -> c.Command:
        while (command := self._wire.next_command()) is NEED_DATA:
            data = await self._transport.receive()
            if not data:
                raise TransportClosed
            self._wire.receive_data(data)
        return command

    async def run(self) -> None:
        """Take answers until it ends."""
        try:
            while True:
                command: Any = await self._next()
                waiting = self._waiting.get(getattr(command, "correlation_id", -1))
                if waiting is not None:
                    waiting.take(command)
                else:
                    self._take(command)
                    await self._room()
        except (TransportClosed, ProtocolError):
            pass
        finally:
            self._end()

    async def lost(self) -> None:
        """Return when it is gone."""
        await self._lost.wait()

    async def lost_or(self, event: trio.Event) -> None:
        """Return when it is gone, or something is set."""
        async with trio.open_nursery() as nursery:

            async def wait(one: trio.Event) -> None:
                await one.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait, self._lost)
            nursery.start_soon(wait, event)

    async def send(self, command: c.ClientCommand) -> None:
        """Send what is not answered.

        Raises:
            Refused: the connection is gone.
        """
        try:
            await self._send(codec.encode(command))
        except TransportClosed:
            raise Refused(Reason.NOT_AVAILABLE, "the node that leads is gone") from None

    async def _send(self, data: bytes) -> None:
        """Send a frame; where that is not done, it may have been sent in part.

        Raises:
            TransportClosed: the connection is gone.
        """
        async with self._sending:
            if self.is_lost:
                raise TransportClosed
            try:
                await self._transport.send(data)
            except BaseException:
                self._end()
                self._transport.close()
                raise

    def _end(self) -> None:
        self.is_lost = True
        self._lost.set()
        for one in self._waiting.values():
            one.is_over.set()

    async def ask(
        self,
        command: Any,  # noqa: ANN401 - of any kind
        answered: Callable[[Any], None] = _ignored,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:  # noqa: ANN401 - as above
        """Have a request carried out; the answer has the correlation id of the request.

        Args:
            command: the request.
            answered: called with the answer, before anything is taken that was said later.
            seconds: that it may take.

        Raises:
            Refused: the connection is gone, or there is no answer: nobody knows what was done.
        """
        self._last += 1
        number = self._last
        fields = {name: getattr(command, name) for name in command.__struct_fields__}
        sent = type(command)(**(fields | {"correlation_id": number}))
        waiting = self._waiting[number] = _Waiting(command.correlation_id, answered)
        try:
            with trio.move_on_after(seconds):
                await self._send(codec.encode(sent))
                await waiting.is_over.wait()
        except TransportClosed:
            pass
        finally:
            del self._waiting[number]
        if waiting.answer is None:
            details = "the node that leads has not answered; look whether it is done, and ask again"
            raise Refused(Reason.NOT_AVAILABLE, details)
        return waiting.answer


@asynccontextmanager
async def open_link(
    leader: LeaderFacts,
    secret: str,
    user: str,
    virtual_host: str,
    take: Callable[[c.Command], None] = _ignored,
    room: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> AsyncIterator[NodeLink]:
    """A connection to a node that has logged in; it ends with the block.

    Args:
        leader: the node.
        secret: of the cluster.
        user: for whom; NODE for the node itself, which may do anything.
        virtual_host: that it enters.
        take: hears what is said unasked.
        room: returns when `take` may be called again.

    Raises:
        Refused: it is not reached, or does not let us in.
    """
    inside, outside = leader.addresses.get("stream/ssl"), leader.addresses.get("stream")
    address = inside or outside
    if address is None:
        details = f"node {leader.name}, which leads, has no port of the stream protocol"
        raise Refused(Reason.NOT_AVAILABLE, details)
    async with AsyncExitStack() as stack:
        try:
            with trio.fail_after(_LOGIN_SECONDS):
                shown = (leader.certificate,) if inside else ()
                transport = await passing.connect(*address, *shown)
                stack.callback(transport.close)
                link = NodeLink(transport, take, room)
                await link.log_in(secret, user, virtual_host)
        except (OSError, TransportClosed, ProtocolError, trio.TooSlowError) as error:
            why = f": {error}" if str(error) else ""
            details = f"node {leader.name}, which leads, is not reached at {address}{why}"
            raise Refused(Reason.NOT_AVAILABLE, details) from error
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            yield link
            nursery.cancel_scope.cancel()
