"""One connection from login to end: requests with their answers, and what the server sends unasked.

Works in asyncio and in trio programs, through anyio. The protocol itself is `streamd.wire`.
"""

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

import anyio
from anyio.abc import ByteStream

from clients.errors import ConnectionLost, NotSent, StreamError, refusal
from clients.uri import DEFAULT_PORTS, SCHEME, TLS_SCHEME, Endpoint, TlsFiles
from streamd.wire.stream import (
    NEED_DATA,
    Connection as WireConnection,
    ProtocolError,
    ResponseCode,
    Role,
    State,
    codec,
    commands as c,
    text_of,
)
from streamd.wire.stream.fields import CommandVersions, Pair

OK = ResponseCode.OK
_RECEIVE_BYTES = 256 << 10
_FRAME_MAX = 1 << 20
_PIECE_BYTES = 256 << 10  # that are on their way in `ANSWER_SECONDS`, on a line of 10 kB/s as well
_LOGIN_SECONDS = 10
ANSWER_SECONDS = 30
_CLOSE_SECONDS = 5

# How a stream says that nothing can be sent or received any more; TLS has its own way.
_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError)

Take: TypeAlias = Callable[[c.ServerCommand], None]


class _Answer:
    """A place for the answer to one request."""

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.command: Any = None


class ClientConnection:
    """An open connection; made by `open_connection`.

    Attributes:
        endpoint: where it leads.
        frame_max: bytes that a frame may have.
        heartbeat: seconds between signs of life, 0 for none.
        server: what the server said about itself.
        lost: why the connection is gone, None while it is there.
        ended: set when it is gone.
        was_closed: the server has closed it with a Close command.
    """

    def __init__(self, stream: ByteStream, endpoint: Endpoint, heartbeat: int, take: Take) -> None:
        self.endpoint = endpoint
        self.frame_max = _FRAME_MAX
        self.server: dict[str, str] = {}
        self.lost: StreamError | None = None
        self.ended = anyio.Event()
        self.was_closed = False
        self._take = take
        self._stream = stream
        self._wire = WireConnection(Role.CLIENT, None)
        self.heartbeat = heartbeat
        self._sending = anyio.Lock(fast_acquire=True)  # sending yields
        self._answers: dict[int, _Answer] = {}
        self._correlation_id = 0
        self._has_sent = self._has_heard = True
        self._receiving = anyio.CancelScope(shield=True)
        self._known: set[int] = set()

    @property
    def is_streamd(self) -> bool:
        """The server is a streamd, with requests that others do not have."""
        return "streamd" in self.server

    @property
    def is_read_only(self) -> bool:
        """The server changes nothing, and takes no messages."""
        return self.server.get("read_only") == "true"

    @property
    def is_spread(self) -> bool:
        """It is a node of a cluster whose streams may have other leaders."""
        return self.server.get("spread") == "true"

    def knows(self, kind: type[Any]) -> bool:
        """Whether the server says that it knows a kind of request."""
        return kind.KEY in self._known

    # -- login

    async def log_in(self, name: str) -> None:
        """Go through the login.

        Raises:
            LoginRefused: the server does not let this user in.
            ConnectionLost: the peer is not a stream server.
        """
        endpoint = self.endpoint
        await self.introduce(name)
        await self._step(c.SaslHandshake)
        mechanism, secret = "EXTERNAL", b""
        if endpoint.user:
            mechanism, secret = "PLAIN", f"\0{endpoint.user}\0{endpoint.password}".encode()
        await self._step(c.SaslAuthenticate, mechanism, secret)
        tune = await self._next(c.Tune)
        self.frame_max = min(tune.frame_max, _FRAME_MAX) or tune.frame_max or _FRAME_MAX
        self.heartbeat = min(tune.heartbeat_seconds, self.heartbeat)
        await self._stream.send(self._wire.send(c.Tune(self.frame_max, self.heartbeat)))
        await self._step(c.Open, endpoint.virtual_host)
        answer = await self._step(c.ExchangeCommandVersions, (CommandVersions(2, 1, 2),))
        self._known = {key for key, _, _ in answer.versions}

    async def introduce(self, name: str) -> None:
        """Tell each other who one is, the first step of the login; raises as `log_in` does."""
        properties = (
            Pair("product", "streamd client"),
            Pair("platform", "Python"),
            Pair("connection_name", name),
        )
        answer = await self._step(c.PeerProperties, properties)
        self.server = dict(answer.properties)

    async def _step(self, kind: type[Any], *fields: object) -> Any:  # noqa: ANN401 - of any kind
        self._correlation_id += 1
        await self._stream.send(self._wire.send(kind(self._correlation_id, *fields)))
        answer = await self._next(object)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot log in to {self.endpoint}")
        return answer

    async def _next(self, kind: type[Any]) -> Any:  # noqa: ANN401 - of any kind
        while True:
            command = self._wire.next_command()
            if command is NEED_DATA:
                self._wire.receive_data(await self._stream.receive(_RECEIVE_BYTES))
            elif isinstance(command, kind) and not isinstance(command, c.Heartbeat):
                return command

    # -- requests

    async def request(
        self, kind: type[Any], *fields: object, seconds: float | None = ANSWER_SECONDS
    ) -> Any:  # noqa: ANN401 - of any kind
        """Send a request and return its answer, whatever code it has.

        Args:
            kind: of the request.
            fields: its fields after the correlation id.
            seconds: how long to wait for the answer; None waits for ever.

        Raises:
            NotSent: the connection was gone before.
            ConnectionLost: the connection is gone, or no answer came in time.
        """
        self._correlation_id += 1
        number = self._correlation_id
        answer = self._answers[number] = _Answer()
        try:
            await self.send(kind(number, *fields))
            with anyio.move_on_after(seconds):
                await answer.arrived.wait()
        finally:
            del self._answers[number]
        if answer.command is None:
            raise self.lost or ConnectionLost(
                f"{self.endpoint}: no answer to {kind.__name__} in {seconds} s"
            )
        return answer.command

    async def send(self, command: c.ClientCommand) -> None:
        """Send a command; see `send_frame`."""
        frame = codec.encode(command)
        await self.send_frame(lambda: frame)

    async def send_frame(self, make: Callable[[], bytes]) -> None:
        """Send what `make` gives: whole frames, or nothing.

        It is called when everything before it is sent, and what it gives is sent to its end: half a
        frame would break the connection. So when this is cancelled, either `make` was not called,
        or its frames are sent.

        Raises:
            NotSent: the connection is gone, and `make` was not called.
            ConnectionLost: it broke while frames of `make` were sent; they may have arrived.
        """
        self._check()
        async with self._sending:
            self._check()
            frame = make()
            if not frame:
                return
            self._has_sent = True
            with anyio.CancelScope(shield=True) as scope:
                try:
                    for start in range(0, len(frame), _PIECE_BYTES):
                        scope.deadline = anyio.current_time() + ANSWER_SECONDS
                        await self._stream.send(frame[start : start + _PIECE_BYTES])
                except _BROKEN as error:
                    self.lose(ConnectionLost(f"{self.endpoint}: the connection broke"))
                    raise self.lost_error from error
        if scope.cancelled_caught:
            self.lose(ConnectionLost(f"{self.endpoint}: it does not accept data any more"))
            raise self.lost_error

    def _check(self) -> None:
        if self.lost is not None:
            raise NotSent(str(self.lost))

    # -- receiving

    async def run(self) -> None:
        """Receive until the connection ends; then all waiting requests fail.

        Cancelling does not end it, `stop` does: until then a request may be waiting.
        """
        with self._receiving:
            await self._receive()

    def stop(self) -> None:
        """Receive no more."""
        self._receiving.cancel()

    async def _receive(self) -> None:
        try:
            while self._wire.state is not State.CLOSED:
                data = await self._stream.receive(_RECEIVE_BYTES)
                self._has_heard = True
                self._wire.receive_data(data)
                while (command := self._wire.next_command()) is not NEED_DATA:
                    await self._dispatch(cast("c.ServerCommand", command))
            reason = "it was closed"
        except (anyio.EndOfStream, *_BROKEN):
            reason = "the connection ended"
        except ProtocolError as error:
            reason = f"the server does not keep to the protocol: {error}"
        self.lose(ConnectionLost(f"{self.endpoint}: {reason}"))

    async def _dispatch(self, command: c.ServerCommand) -> None:
        match command:
            case c.Close(corr, code, reason):
                answer = self._wire.send(c.CloseResponse(corr, OK))
                self.was_closed = True
                self.lose(ConnectionLost(f"{self.endpoint}: {reason} ({text_of(code)})"))
                if not self._sending.locked():  # else part of a frame is on its way
                    await self._stream.send(answer)
            case c.Heartbeat() | c.Tune():
                pass
            case (
                c.Deliver()
                | c.DeliverCommitted()
                | c.DeliverStored()
                | c.CreditResponse()
                | c.ConsumerUpdate()
                | c.PublishConfirm()
                | c.PublishError()
                | c.MetadataUpdate()
            ):
                self._take(command)
            case _:
                answer_place = self._answers.get(command.correlation_id)
                if answer_place is not None:
                    answer_place.command = command
                    answer_place.arrived.set()

    @property
    def lost_error(self) -> StreamError:
        """Why the connection is gone, once it is."""
        return self.lost or ConnectionLost(f"{self.endpoint}: the connection is gone")

    def lose(self, error: StreamError) -> None:
        """The connection is gone: let all waiting requests fail."""
        if self.lost is None:
            self.lost = error
            self.ended.set()
            for answer in self._answers.values():
                answer.arrived.set()

    async def keep_alive(self) -> None:
        """Send signs of life when nothing else is sent; give up when none come."""
        silent = 0
        while self.heartbeat and self.lost is None:
            self._has_sent = self._has_heard = False
            await anyio.sleep(self.heartbeat / 2)
            if not self._has_sent:
                try:
                    await self.send(c.Heartbeat())
                except ConnectionLost:
                    return
            silent = 0 if self._has_heard else silent + 1
            if silent > 4:  # noqa: PLR2004 - half intervals: two to three whole ones
                self.lose(ConnectionLost(f"{self.endpoint}: no sign of life"))
                await self._stream.aclose()

    async def close(self) -> None:
        """Say goodbye and wait a moment for the answer."""
        if self.lost is not None or self._wire.state is not State.OPEN:
            return
        with anyio.move_on_after(_CLOSE_SECONDS):
            try:
                self._correlation_id += 1
                answer = self._answers[self._correlation_id] = _Answer()
                close = c.Close(self._correlation_id, OK, "done")
                async with self._sending:
                    if self.ended.is_set():
                        return
                    await self._stream.send(self._wire.send(close))
                await answer.arrived.wait()
            except _BROKEN:
                pass


@asynccontextmanager
async def open_connection(
    endpoint: Endpoint, name: str, heartbeat: int, take: Take
) -> AsyncIterator[ClientConnection]:
    """A connection that has logged in; ends with the context.

    An error in the context comes out as it is, not in a group.

    Args:
        endpoint: the server and the user.
        name: of the connection, as the server lists it.
        heartbeat: seconds between signs of life, 0 for none.
        take: called with what the server sends unasked.

    Raises:
        ConnectionLost: nobody answers there.
        LoginRefused: the server does not let this user in.
    """
    stream = await _connect(endpoint)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            connection = ClientConnection(stream, endpoint, heartbeat, take)
            try:
                await _in_words(endpoint, connection.log_in(name))
                tasks.start_soon(connection.run)
                tasks.start_soon(connection.keep_alive)
                try:
                    yield connection
                finally:
                    with anyio.CancelScope(shield=True):
                        await connection.close()
                    connection.stop()
                    connection.lose(ConnectionLost(f"{endpoint}: the connection was closed"))
            except Exception as error:  # noqa: BLE001 - raised again below
                failure = error
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
    if failure is not None:
        raise failure


async def probe(endpoint: Endpoint, seconds: float) -> dict[str, str]:
    """What a server says of itself, without a login.

    Args:
        endpoint: where it is; the user does not matter.
        seconds: how long it may take.

    Raises:
        ConnectionLost: nobody answers there in time, or no server of the stream protocol.
    """
    with anyio.move_on_after(seconds):
        stream = await _connect(endpoint)
        try:
            connection = ClientConnection(stream, endpoint, 0, print)
            await _in_words(endpoint, connection.introduce("ping"))
            return connection.server
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)
    raise ConnectionLost(f"{endpoint} does not answer within {seconds:g} s")


async def _connect(endpoint: Endpoint) -> ByteStream:
    try:
        with anyio.fail_after(_LOGIN_SECONDS):
            if endpoint.tls is None:
                return await anyio.connect_tcp(endpoint.host, endpoint.port)
            return await anyio.connect_tcp(
                endpoint.host,
                endpoint.port,
                ssl_context=_tls_context(endpoint.tls),
                tls_standard_compatible=False,  # servers end connections without a word
            )
    except TimeoutError:
        raise ConnectionLost(f"{endpoint} does not answer") from None
    except ssl.SSLError as error:
        raise ConnectionLost(f"no TLS with {endpoint}: {_tls_reason(endpoint, error)}") from error
    except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
        reason = _tls_reason(endpoint, error.__cause__)
        raise ConnectionLost(f"no TLS with {endpoint}: {reason}") from error
    except OSError as error:
        raise ConnectionLost(
            f"cannot connect to {endpoint}: {_reason(error)}; is the server running?"
        ) from error


def _tls_context(files: TlsFiles) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.cacertfile or None)
        if files.certfile:
            context.load_cert_chain(files.certfile, files.keyfile or None)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(filter(None, (files.cacertfile, files.certfile, files.keyfile)))
        raise ValueError(f"cannot use {named}: {error.strerror or error}") from error
    return context


def _tls_reason(endpoint: Endpoint, error: BaseException | None) -> str:
    """Why there is no TLS connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = _BAD_CERTIFICATES.get(error.verify_code)
        if what is not None:
            return what.format(host=endpoint.host)
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _REFUSALS:
        return (
            f"it refuses the client's certificate ({error.reason.lower().replace('_', ' ')}); "
            "name one that it accepts with certfile= and keyfile= in the address"
        )
    if error is None or isinstance(error, ssl.SSLEOFError | ConnectionError):
        return f"it ended the connection; {_NO_TLS}"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_RECORDS:
        return f"what it answers is not TLS; {_NO_TLS}"
    return getattr(error, "reason", None) or str(error)


_NO_TLS = f"is it a port for TLS? without TLS the address begins with {SCHEME}://"
_UNKNOWN_AUTHORITY = (
    "its certificate is from an authority that is not trusted here; "
    "name the authority's file with ?cacertfile=ca.pem in the address"
)
# What OpenSSL finds wrong with a server's certificate.
# Source: openssl/openssl, include/openssl/x509_vfy.h.in.
_BAD_CERTIFICATES = {
    2: _UNKNOWN_AUTHORITY,
    18: _UNKNOWN_AUTHORITY,
    19: _UNKNOWN_AUTHORITY,
    20: _UNKNOWN_AUTHORITY,
    21: _UNKNOWN_AUTHORITY,
    9: "its certificate is not valid yet; look at the clocks of both machines",
    10: "its certificate has expired; the server needs a new one",
    62: "its certificate is for another host, not {host}; connect to a name that it is for",
    64: "its certificate is for another host, not {host}; connect to a name that it is for",
}
_NO_RECORDS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "UNSUPPORTED_PROTOCOL",
        "PACKET_LENGTH_TOO_LONG",
    }
)
_REFUSALS = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    }
)


def _reason(error: BaseException) -> str:
    """What the system said; anyio wraps the errors of the single attempts, trio adds to them."""
    inner = error.exceptions[-1] if isinstance(error, BaseExceptionGroup) else error.__cause__
    if inner is not None:
        return _reason(inner)
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error)


async def _in_words(endpoint: Endpoint, login: Awaitable[None]) -> None:
    """A login, or the beginning of one; what goes wrong is told in one sentence."""
    try:
        with anyio.fail_after(_LOGIN_SECONDS):
            await login
    except TimeoutError:
        raise _foreign(endpoint, "no answer") from None
    except ssl.SSLError as error:  # a client's certificate is looked at when all else is done
        raise ConnectionLost(f"no TLS with {endpoint}: {_tls_reason(endpoint, error)}") from error
    except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
        hint = f", or expects TLS: then the address begins with {TLS_SCHEME}://"
        raise ConnectionLost(
            f"{endpoint} ended the connection during the login: it has as many as it takes, or is "
            f"being stopped{'' if endpoint.tls else hint}"
        ) from error
    except ProtocolError as error:
        raise _foreign(endpoint, str(error)) from error


def _foreign(endpoint: Endpoint, why: str) -> ConnectionLost:
    usual = f"port {DEFAULT_PORTS[TLS_SCHEME if endpoint.tls else SCHEME]}"
    return ConnectionLost(
        f"{endpoint} does not speak the stream protocol, which is usually on {usual}: {why}"
    )
