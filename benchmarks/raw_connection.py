"""A connection for measuring: raw, blocking, with as little work of its own as can be."""

import socket
import struct
from typing import Any, Self

from streamd.wire.stream import NEED_DATA, Connection, ResponseCode, Role, commands as c
from streamd.wire.stream.fields import CommandVersions

SIZE = struct.Struct(">I")
_BUFFER_BYTES = 4 << 20


class RawConnection:
    """Logged in as guest.

    Attributes:
        socket: the connected socket, blocking.
    """

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._wire = Connection(Role.CLIENT, None)
        self._correlation_id = 0
        self._log_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _log_in(self) -> None:
        self.request(c.PeerProperties, ())
        self.request(c.SaslHandshake)
        self.request(c.SaslAuthenticate, "PLAIN", b"\0guest\0guest")
        tune = self.wait_for(c.Tune)
        self.socket.sendall(self._wire.send(c.Tune(tune.frame_max, 0)))
        self.request(c.Open, "/")
        self.request(c.ExchangeCommandVersions, (CommandVersions(2, 1, 2),))

    def request(self, kind: type[Any], *fields: object) -> Any:  # noqa: ANN401 - of any kind
        """Send a request and wait for its answer.

        Raises:
            RuntimeError: the server refuses it.
        """
        self.send(kind, *fields)
        answer = self.wait_for(object)
        if answer.code != ResponseCode.OK:
            raise RuntimeError(f"{kind.__name__}: the server answers with code {answer.code}")
        return answer

    def send(self, kind: type[Any], *fields: object) -> None:
        """Send a request; its answer is left for the next reader of the socket."""
        self._correlation_id += 1
        self.socket.sendall(self._wire.send(kind(self._correlation_id, *fields)))

    def wait_for(self, kind: type[Any]) -> Any:  # noqa: ANN401 - of any kind
        """The next command of a kind; those before it are dropped."""
        while True:
            command = self._wire.next_command()
            if command is NEED_DATA:
                data = self.socket.recv(1 << 16)
                if not data:
                    raise ConnectionError("the server closed the connection")
                self._wire.receive_data(data)
            elif isinstance(command, kind) and not isinstance(command, c.Heartbeat):
                return command
