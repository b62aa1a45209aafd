"""Requests that come to a node which stands by: the leader answers them.

What is asked of the node itself, whether it is alive and ready, it answers itself, and while nobody
leads also what it can without. What browsers may send was checked before (browsers.py): the leader
sees the request of a program. It checks the password.

Where the leader has a port inside TLS, that is used, and it has to show the certificate whose
fingerprint is in its heartbeat: whoever can write that can do anything with the tier anyway.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import h11
import trio
from starlette.authentication import AuthenticationError
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from segments.store.heartbeat import NodeAddress
from streamd.hop.door import EngineLink
from streamd.http_api.browsers import is_inside_tls
from streamd.http_api.caller import OPEN_PATHS, client_host, note_entered, read_credentials
from streamd.http_api.messages import error_answer
from streamd.net.addresses import is_local_address
from streamd.net.tls import inside_tls
from streamd.net.transport import keep_alive
from streamd.operations.cluster import GetServedBy, LeaderFacts

logger = logging.getLogger(__name__)

_HOLDS_SECONDS = 1.0  # that an answer of the engine holds
_CONNECT_SECONDS = 5.0
_READ_BYTES = 64 << 10
_HEADER_BYTES = 64 << 10
_GONE = (OSError, ssl.SSLError, trio.BrokenResourceError, h11.ProtocolError)
_READS = frozenset(("GET", "HEAD"))
_PASSED_ON = b"x-streamd-passed-on"
# They are of one connection, or were checked, or are set here.
_LEFT_OUT = frozenset(
    b"connection keep-alive te upgrade proxy-connection host expect origin referer "
    b"sec-fetch-site sec-fetch-mode sec-fetch-dest".split()
)
_ANSWERS_LEFT_OUT = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date"))


class Reached(NamedTuple):
    """A connection to the leader.

    Attributes:
        stream: closed by whoever has it.
        is_local: the leader takes whoever comes by it for somebody on its own machine.
    """

    stream: trio.abc.Stream
    is_local: bool


class ToLeader:
    """Has the leader answer, where this node stands by.

    Args:
        app: answers here.
        link: to the engine, which knows.
        prefix: begins every path; may be empty.
        reach: connects to the leader.
    """

    def __init__(
        self,
        app: ASGIApp,
        link: EngineLink,
        prefix: str,
        reach: Callable[[LeaderFacts, NodeAddress], Awaitable[Reached]] | None = None,
    ) -> None:
        self._app, self._link, self._reach = app, link, reach or _reach
        self._own = frozenset(prefix + path for path in OPEN_PATHS)
        self._leader: LeaderFacts | None = None
        self._asked_at: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        leader = await self._served_by() if self._is_passed_on(scope) else None
        address = None if leader is None else _address_of(leader)
        if leader is None or address is None:
            await self._app(scope, receive, send)
            return
        if any(name == _PASSED_ON for name, _ in scope["headers"]):
            text = "the address that node %s advertises, which leads, leads to one that stands by: "
            logger.error(text + "look at its setting advertised_host", leader.name)
            await self._app(scope, receive, send)
            return
        await self._note_user(scope)
        try:
            with trio.fail_after(_CONNECT_SECONDS):
                reached = await self._reach(leader, address)
        except (*_GONE, trio.TooSlowError) as error:
            logger.warning("node %s, which leads, is not reached: %s", leader.name, error)
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(reached, address, scope, send)
        if not await exchange.run(receive, partial(self._led_on, leader.start)):
            await self._app(scope, receive, send)

    async def _note_user(self, scope: Scope) -> None:
        """A user's request has its place, see serving.py, also while the leader answers it."""
        conn = HTTPConnection(scope)
        with suppress(AuthenticationError):
            name, password = read_credentials(conn.headers.get("authorization", ""))
            visitor = await self._link.enter(name, password, client_host(conn))
            if visitor is not None:
                note_entered(conn, visitor)
                visitor.leave()

    async def _led_on(self, start: str) -> None:
        """Return when the process that began as `start` does not lead any more, or is silent."""
        while True:
            await trio.sleep(_HOLDS_SECONDS)
            leader = await self._served_by()
            if leader is None or leader.start != start:
                return

    def _is_passed_on(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        path: str = scope["path"]
        return path.rstrip("/") not in self._own

    async def _served_by(self) -> LeaderFacts | None:
        now = trio.current_time()
        if self._asked_at is None or now - self._asked_at >= _HOLDS_SECONDS:
            self._leader, self._asked_at = await self._link.door.ask(GetServedBy()), now
        return self._leader


def _address_of(leader: LeaderFacts) -> NodeAddress | None:
    return leader.addresses.get("https") or leader.addresses.get("http")


async def _reach(leader: LeaderFacts, address: NodeAddress) -> Reached:
    """Connect to the leader, inside TLS where it has that.

    Raises:
        OSError: there is nobody, or somebody else.
        trio.BrokenResourceError: it does not speak TLS.
    """
    plain = await trio.open_tcp_stream(*address)
    keep_alive(plain.socket)
    is_local = is_local_address(plain.socket.getpeername()[0])
    if "https" not in leader.addresses:
        return Reached(plain, is_local)
    return Reached(await inside_tls(plain, leader.certificate), is_local)


class _Exchange:
    """One request, and its answer."""

    def __init__(self, leader: Reached, address: NodeAddress, scope: Scope, send: Send) -> None:
        self._leader, self._host, self._scope, self._send = leader, address, scope, send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADER_BYTES)
        self._has_begun = self._has_asked = False
        self._reading = trio.CancelScope()

    async def run(self, receive: Receive, ended: Callable[[], Awaitable[None]]) -> bool:
        """Carry it out; the answer says so where the leader has gone meanwhile.

        Args:
            receive: see ASGI.
            ended: returns when the leader leads no more: it may never answer then.

        Returns:
            False if there is no answer, and the request can be answered here.

        Raises:
            OSError: it has gone in the middle of its answer.
        """
        try:
            client = self._scope.get("client") or ("", 0)
            if self._leader.is_local and not is_local_address(client[0]):
                reason = "the leader takes all for its own machine that come from here: ask it"
                await error_answer(403, "forbidden", reason)(self._scope, receive, self._send)
                return True
            return await self._run(receive, ended)
        finally:
            await trio.aclose_forcefully(self._leader.stream)

    async def _run(self, receive: Receive, ended: Callable[[], Awaitable[None]]) -> bool:
        has_gone = has_left = False
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                nonlocal has_left
                with suppress(*_GONE):  # it may have answered before it has read all
                    has_left = await self._ask(receive)
                    if has_left:
                        nursery.cancel_scope.cancel()

            async def watch() -> None:
                nonlocal has_gone
                await ended()
                has_gone = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            nursery.start_soon(watch)
            try:
                await self._answer()
            except _GONE:
                has_gone = True
            nursery.cancel_scope.cancel()
        if has_left or not has_gone:
            return True
        if self._has_begun:
            raise OSError("the leader has gone in the middle of its answer")
        if self._scope["method"] in _READS:
            return False
        reason = "the leader has gone before it has answered: whether it did it is not known"
        answer = error_answer(503, "service_unavailable", reason)
        await answer(self._scope, receive, self._send)
        return True

    async def _ask(self, receive: Receive) -> bool:
        """Send the request; whether the client has left."""
        scope = self._scope
        path = scope["raw_path"].partition(b"?")[0]
        target = path + b"?" + scope["query_string"] if scope["query_string"] else path
        headers = [(name, value) for name, value in scope["headers"] if name not in _LEFT_OUT]
        headers += [(b"host", str(self._host).encode()), (b"connection", b"close")]
        headers += [(_PASSED_ON, b"1")]
        await self._tell(
            h11.Request(method=scope["method"].encode(), target=target, headers=headers)
        )
        with self._reading:  # left when the answer begins: what is unread, others read
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return True
                if message.get("body"):
                    await self._tell(h11.Data(data=message["body"]))
                if not message.get("more_body"):
                    break
            await self._tell(h11.EndOfMessage())
            self._has_asked = True
        if not self._has_asked:
            return False
        while (await receive())["type"] != "http.disconnect":
            pass
        return True

    async def _tell(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._leader.stream.send_all(data)

    async def _answer(self) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._leader.stream.receive_some(_READ_BYTES)))
            elif isinstance(event, h11.Response):
                self._has_begun = True
                if not self._has_asked:
                    self._reading.cancel()
                    await trio.lowlevel.checkpoint()
                await self._send(
                    {
                        "type": "http.response.start",
                        "status": event.status_code,
                        "headers": list(_kept(event.headers, self._scope)),
                    }
                )
            elif isinstance(event, h11.Data):
                body = {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
                await self._send(body)
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise OSError("closed")


def _kept(headers: Iterable[tuple[bytes, bytes]], scope: Scope) -> Iterator[tuple[bytes, bytes]]:
    """The headers of an answer; cookies are for the way that the browser has come by."""
    secure = b"; Secure" if is_inside_tls(scope) else b""
    for name, value in headers:
        if name == b"set-cookie":
            parts = [part for part in value.split(b";") if part.strip().lower() != b"secure"]
            yield name, b";".join(parts) + secure
        elif name not in _ANSWERS_LEFT_OUT:
            yield name, value
