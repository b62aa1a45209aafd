"""Stands before an object store, counts what is asked of it, and spoils what a test names.

It also answers by itself, as stores do that refuse, where there is none behind it.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """One request.

    Attributes:
        number: of all so far, from 1.
        method: of HTTP.
        path: with the query.
        headers: by name in small letters.
        body: of it.
    """

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """What the store, or the proxy in its place, answers."""

    status: int
    headers: dict[str, str]
    body: bytes


class Spoil(Enum):
    """What becomes of a request that the store is given, unless it says otherwise."""

    NOTHING = "all is well"
    UNREACHED = "the connection breaks off before the store has it"
    LOST = "the store does it, and the connection breaks off without an answer"
    FAILED = "the store does it, and the answer is 503"
    SILENCE = "the store does it, and there is no answer until the proxy ends"
    CUT = "half of the answer's body comes"
    FLIPPED = "a bit of the request's body is another on the way"


Decide = Callable[[Request], Spoil | Answer]


def well(_request: Request) -> Spoil:
    """Nothing is spoilt."""
    return Spoil.NOTHING


def refused(status: int, code: str, more: str = "") -> Answer:
    """As a store says it in XML; without a code there is no body."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code>{more}</Error>" if code else ""
    return Answer(status, {"content-type": "application/xml"}, body.encode())


def first(spoil: Spoil | Answer, *methods: str) -> Decide:
    """Spoils the first request of these methods, and no other."""
    left = [spoil]
    return lambda request: left.pop() if left and request.method in methods else Spoil.NOTHING


class StoreProxy:
    """The proxy.

    Attributes:
        endpoint: its URL.
        decide: what becomes of each request; called in threads.
        requests: all so far.
        sent: bytes of bodies that were answered.
    """

    def __init__(self, target: str = "") -> None:
        self.decide: Decide = well
        self.requests: list[Request] = []
        self.sent = 0
        self._target = target.removeprefix("http://")
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def serve(self) -> None:
                proxy.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def count(self, method: str) -> int:
        """Requests of a method."""
        return sum(request.method == method for request in self.requests)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """One request, in a thread of its connection."""
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            number = len(self.requests) + 1
            request = Request(number, handler.command, handler.path, headers, body)
            self.requests.append(request)
        spoil = self.decide(request)
        if isinstance(spoil, Answer):
            return self._answer(handler, spoil)
        if spoil is Spoil.UNREACHED:
            return _break(handler)
        if spoil is Spoil.FLIPPED:
            request = request._replace(body=body[:-1] + bytes([body[-1] ^ 1]))
        answer = self._forward(request)
        if spoil is Spoil.SILENCE:
            self._is_over.wait()
        if spoil in (Spoil.LOST, Spoil.SILENCE):
            return _break(handler)
        if spoil is Spoil.FAILED:
            answer = refused(503, "ServiceUnavailable")
        return self._answer(handler, answer, is_cut=spoil is Spoil.CUT)

    def _forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(self._target)
        try:
            skip = {"skip_host": True, "skip_accept_encoding": True}
            connection.putrequest(request.method, request.path, **skip)
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body or None)
            found = connection.getresponse()
            headers = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, headers, found.read())
        finally:
            connection.close()

    def _answer(
        self, handler: BaseHTTPRequestHandler, answer: Answer, *, is_cut: bool = False
    ) -> None:
        size = len(answer.body)
        body = answer.body[: size // 2] if is_cut else answer.body
        with self._lock:
            self.sent += len(body)
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            if name not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                handler.send_header(name, value)
        size_told = answer.headers.get("content-length", str(size))  # of HEAD there is no body
        handler.send_header("content-length", size_told)
        handler.end_headers()
        handler.wfile.write(body)
        if is_cut:
            _break(handler)

    def start(self) -> None:
        """Listen, in a thread."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()


def _break(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.close()


@contextmanager
def proxy_before(target: str = "") -> Iterator[StoreProxy]:
    """A proxy before a store's endpoint; without one, all has to be answered by `decide`."""
    proxy = StoreProxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
