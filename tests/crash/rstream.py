"""rstream, in a process of its own: what it was told counts when it has ended."""

import subprocess
import sys

from tests.crash.history import History


class Rstream:
    """RabbitMQ's client publishes numbers to a stream of its own until it is killed.

    Args:
        told: hears what was confirmed.
        stream: to which.
        publisher: its name; empty for none.
        pause: seconds between two batches.
    """

    def __init__(self, told: History, stream: str, publisher: str, pause: float) -> None:
        self._told, self._words = told, (publisher, str(pause))
        self._stream, self._next = stream, 0
        self._process: subprocess.Popen[str] | None = None

    def start(self, port: int) -> None:
        """Begin behind what was confirmed; with a name, what was sent before is sent again."""
        words = [str(port), self._stream, str(self._next), *self._words]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rstream_publisher", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def kill(self) -> None:
        """End it; what it was told counts."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        lines = process.communicate()[0].splitlines(keepends=True)
        told = [line.split() for line in lines if line.endswith("\n")]  # the last may be cut
        confirmed = {int(number) for word, number in told if word == "confirmed"}
        self._told.single |= confirmed
        self._next = max([self._next, *(number + 1 for number in confirmed)])
