"""The server to compare with: one that runs already, or one that a script starts.

The script understands `start`, which returns when the server listens, `stop`, and `pid`, which
fails when it does not run. Only what was started here is stopped.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.target import Server

HOST = "127.0.0.1"
PORT = 15552
SCRIPT = Path(__file__).with_name("rabbitmq.sh")


class ScriptedServer(Server):
    """A server that was started with a script."""

    can_restart = True

    def __init__(self, script: Path, port: int) -> None:
        self._script = script
        super().__init__(HOST, port, 0)
        self.start()
        self.settle()

    def start(self) -> None:
        """Have the script start it."""
        self._starting = subprocess.Popen(
            [self._script, "start"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def settle(self) -> None:
        """Wait for the script, and learn the process."""
        if self._starting.wait() or not (pid := running(self._script)):
            raise RuntimeError(f"the server did not start: try {self._script} start")
        self.pid = pid

    def stop(self) -> None:
        """Have the script stop it."""
        subprocess.run([self._script, "stop"], check=True, stderr=subprocess.DEVNULL)


def is_ready(script: Path) -> bool:
    """Whether the script of this folder has been set up, so that it can start RabbitMQ."""
    return subprocess.run([script, "ready"], capture_output=True, check=False).returncode == 0


def running(script: Path) -> int | None:
    """The process of a server that runs already, by its script."""
    asked = subprocess.run([script, "pid"], capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 else None


@contextmanager
def peer(
    address: tuple[int, int] | None, script: Path | None, port: int
) -> Iterator[Server | None]:
    """The peer, or None without one.

    Args:
        address: port and process of one that runs.
        script: that starts one when there is no `address`.
        port: where the script's server listens.
    """
    if address:
        yield Server(HOST, *address)
    elif script is None:
        yield None
    elif pid := running(script):
        yield Server(HOST, port, pid)
    else:
        server = ScriptedServer(script.absolute(), port)
        try:
            yield server
        finally:
            server.stop()
