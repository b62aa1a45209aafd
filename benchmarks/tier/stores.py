"""Object stores to measure with, on this machine, and a proxy that counts what is asked of one."""

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import NamedTuple, cast

from benchmarks.target import environment
from tests.support.stores import PROGRAMS, StoreServer

KINDS = ("versitygw", "gofakes3", "file")
_PIECE = 1 << 18
_HEAD_BYTES = 1 << 16
# gofakes3 keeps all objects in memory, and without this the garbage of as many uploads beside them;
# with less than the objects take it does nothing but collect garbage.
_GO_MEMORY = "6GiB"


class Store(NamedTuple):
    """An object store that runs.

    Attributes:
        kind: one of KINDS.
        url: of all that is in it.
        endpoint: empty of a folder.
        server: its process.
    """

    kind: str
    url: str
    endpoint: str
    server: StoreServer

    def place(self, name: str) -> "Place":
        """An empty place in it."""
        url = f"{self.url}/{name}"
        if self.kind == "file":
            Path(url.removeprefix("file://")).mkdir()
        return Place(url, self.endpoint)


class Place(NamedTuple):
    """A prefix in a store, for the tier of one server.

    Attributes:
        url: for `open_store`.
        endpoint: empty of a folder.
    """

    url: str
    endpoint: str

    @property
    def options(self) -> tuple[str, ...]:
        """Of a server that has its tier there."""
        return ("--tier", self.url, *(("--tier-endpoint", self.endpoint) * bool(self.endpoint)))


def is_there(kind: str) -> bool:
    """Whether a store of a kind can be started: a folder always, others when they are built."""
    return kind == "file" or PROGRAMS[kind].path.exists()


def best_kind() -> str:
    """The first kind that can be started."""
    return next(kind for kind in KINDS if is_there(kind))


@contextmanager
def started(kind: str) -> Iterator[Store]:
    """An empty store; this process and those it starts have the credentials meanwhile."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamd-store-")))
        stack.enter_context(environment({"GOMEMLIMIT": _GO_MEMORY, "GOGC": "50"}))
        server = StoreServer(kind, folder, is_lasting=False)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(server.kill)
        server.start()
        stack.enter_context(environment(server.environment))
        yield Store(kind, server.url("streams"), server.endpoint, server)


class Counted(NamedTuple):
    """What went through a proxy.

    Attributes:
        requests: by method: GET, PUT, POST, DELETE, HEAD.
        sent, received: bytes to the store, and from it.
    """

    requests: Counter[str]
    sent: int
    received: int

    def since(self, before: "Counted") -> "Counted":
        """What has come since an earlier count."""
        requests = self.requests - before.requests
        return Counted(requests, self.sent - before.sent, self.received - before.received)


class _Listener(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    proxy: "Proxy"


class Proxy:
    """Stands before a store: counts requests and bytes, and lets each request wait.

    Args:
        endpoint: of the store.
        delay: seconds that each request is late.

    Attributes:
        endpoint: its own.
        delay: see above; may be changed.
    """

    def __init__(self, endpoint: str, delay: float = 0) -> None:
        host, _, port = endpoint.rpartition("/")[2].rpartition(":")
        self.delay = delay
        self._target = host, int(port)
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._sent = self._received = 0
        self._listener = _Listener(("127.0.0.1", 0), _Connection)
        self._listener.proxy = self
        self.endpoint = f"http://127.0.0.1:{self._listener.server_address[1]}"
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def count(self) -> Counted:
        """What has gone through so far."""
        with self._lock:
            return Counted(Counter(self._requests), self._sent, self._received)

    def connect(self) -> socket:
        """A new connection to the store."""
        return create_connection(self._target, 30)

    def request(self, method: str) -> None:
        """One has come; returns when it may go on."""
        with self._lock:
            self._requests[method] += 1
        if self.delay:
            time.sleep(self.delay)

    def moved(self, sent: int, received: int) -> None:
        """Bytes have gone through."""
        with self._lock:
            self._sent += sent
            self._received += received


class _Connection(BaseRequestHandler):
    """A client's connection: requests are found by their heads, answers go back as they are."""

    def handle(self) -> None:
        proxy = cast("_Listener", self.server).proxy
        client = cast("socket", self.request)
        with proxy.connect() as store:
            back = threading.Thread(target=_answer, args=(proxy, store, client), daemon=True)
            back.start()
            try:
                _forward(proxy, client, store)
            except OSError:
                pass
            finally:
                _end(store)
                back.join()


def _forward(proxy: Proxy, client: socket, store: socket) -> None:
    waiting = b""
    while True:
        while b"\r\n\r\n" not in waiting:
            piece = client.recv(_HEAD_BYTES)
            if not piece:
                return
            waiting += piece
        head, _, body = waiting.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        left = int(fields.get("content-length", 0))
        proxy.request(lines[0].split(" ")[0])
        body, waiting = body[:left], body[left:]
        proxy.moved(len(body), 0)
        store.sendall(head + b"\r\n\r\n" + body)
        left -= len(body)
        while left:
            piece = client.recv(min(_PIECE, left))
            if not piece:
                return
            proxy.moved(len(piece), 0)
            store.sendall(piece)
            left -= len(piece)


def _answer(proxy: Proxy, store: socket, client: socket) -> None:
    try:
        while piece := store.recv(_PIECE):
            proxy.moved(0, len(piece))  # before somebody who has got it asks
            client.sendall(piece)
    except OSError:
        pass
    finally:
        _end(client)


def _end(connection: socket) -> None:
    try:
        connection.shutdown(2)
    except OSError:
        return
