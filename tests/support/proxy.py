"""Stands before a server and cuts connections, in the middle of a frame as well."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close without waiting, which resets


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port where each connection gets an answer, and its end."""
    with socket.create_server(("localhost", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class Cut(NamedTuple):
    """When one connection ends.

    Attributes:
        to_server: after so many bytes on the way there, None for never.
        to_client: the same on the way back.
        reset: end it with a reset, not in order.
    """

    to_server: int | None = None
    to_client: int | None = None
    reset: bool = False


class CuttingProxy:
    """A proxy; a context that ends it.

    Args:
        target: port of the server.
        cuts: one for each connection in turn; those that come later are left alone.

    Attributes:
        port: where it listens.
        num_connections: so far.
        to_client: bytes on the way back so far.
        target: as given; another one is for later connections.
    """

    def __init__(self, target: int, cuts: Iterable[Cut] = ()) -> None:
        self.target = target
        self._cuts = list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[_Pair] = []
        self.port: int = self._listener.getsockname()[1]
        self.num_connections = self.to_client = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        for pair in self._pairs:
            pair.end()

    def _count(self, size: int) -> None:
        self.to_client += size

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            number, self.num_connections = self.num_connections, self.num_connections + 1
            cut = self._cuts[number] if number < len(self._cuts) else Cut()
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
            else:
                self._pairs.append(_Pair(client, server, cut, self._count))


class _Pair:
    """One connection through the proxy: a thread for each direction; the last one closes."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        cut: Cut,
        count: Callable[[int], object],
    ) -> None:
        self._ends = (client, server)
        self._how = socket.SHUT_RD if cut.reset else socket.SHUT_RDWR
        self._running = 2
        self._lock = threading.Lock()
        if cut.reset:
            for one in self._ends:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        for way in (
            (client, server, cut.to_server, lambda _: None),
            (server, client, cut.to_client, count),
        ):
            threading.Thread(target=self._copy, args=way, daemon=True).start()

    def _copy(
        self,
        source: socket.socket,
        sink: socket.socket,
        limit: int | None,
        count: Callable[[int], object],
    ) -> None:
        left = limit if limit is not None else 1 << 62
        with contextlib.suppress(OSError):
            while left:
                data = source.recv(min(left, 1 << 16))
                if not data:
                    break
                count(len(data))
                sink.sendall(data)
                left -= len(data)
        self.end()
        with self._lock:
            self._running -= 1
            if not self._running:  # nobody uses them any more: their numbers may be used again
                for one in self._ends:
                    one.close()

    def end(self) -> None:
        """Wake both directions."""
        with self._lock:
            if self._running:
                for one in self._ends:
                    with contextlib.suppress(OSError):
                        one.shutdown(self._how)
