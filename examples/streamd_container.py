"""A server in a container, for tests that use testcontainers.

The image is that of the Containerfile: podman build --format docker -t streamd .
"""

import socket

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy


class StreamdContainer(DockerContainer):
    """A server with one user.

    Stream clients connect to where the server says that a stream is. So the port on this machine
    has to be known before the server starts; for AMQP and HTTP any will do.
    """

    def __init__(self, image: str = "streamd", user: str = "test", password: str = "test") -> None:
        super().__init__(image)
        self._login = f"{user}:{password}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.stream_port = free.getsockname()[1]
        self.with_bind_ports(5552, self.stream_port)
        self.with_exposed_ports(5672, 15672)
        self.with_envs(
            STREAMD_USER=user,
            STREAMD_PASSWORD=password,
            STREAMD_ADVERTISED_PORT=str(self.stream_port),
        )
        self.waiting_for(LogMessageWaitStrategy("streamd ready"))

    @property
    def uri(self) -> str:
        return f"rabbitmq-stream://{self._login}@localhost:{self.stream_port}/"

    @property
    def amqp_uri(self) -> str:
        return f"amqp://{self._login}@localhost:{self.get_exposed_port(5672)}/%2F"


if __name__ == "__main__":
    with StreamdContainer() as streamd:
        print(streamd.uri)
