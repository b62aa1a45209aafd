"""The log on its way to stderr: who reads it slowly, or not at all, holds nobody up.

Lines wait in memory for a thread that writes them. Where too many wait, further ones are dropped,
and the log says how many.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation

from segments.words import plural

MOST_CHARACTERS = 1 << 20  # that wait
_END_SECONDS = 1.0  # what still waits at the end has this long


class LineWriter:
    """Takes lines without waiting, and has a thread write them.

    Args:
        descriptor: gets them. No file object: whoever writes to one has a lock, also while nobody
            reads, and the end of the process would wait for it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[str] = deque()
        self._num_waiting = self._num_dropped = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Take a line, or drop it."""
        with self._changed:
            if self._num_waiting + len(text) > MOST_CHARACTERS:
                self._num_dropped += 1
                return
            self._num_waiting += len(text)
            self._lines.append(text)
            self._changed.notify()

    def flush(self) -> None:
        """See `logging.StreamHandler`; the thread does it."""

    def close(self) -> bool:
        """Return when all is written, or after a moment if nobody reads it; then False."""
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        self._thread.join(_END_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while text := self._take():
            data = memoryview(text.encode(errors="backslashreplace"))
            with suppress(OSError):  # nobody reads it any more
                while data:
                    data = data[os.write(self._descriptor, data) :]
            with self._changed:
                self._num_waiting = sum(map(len, self._lines))

    def _take(self) -> str:
        """All lines that wait; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._has_ended)
            text = "".join(self._lines)
            self._lines.clear()
            dropped, self._num_dropped = self._num_dropped, 0
        if dropped:
            lines = plural(dropped, "line")
            text += f"{lines} of the log were dropped: stderr was not read for a while\n"
        return text


@contextmanager
def written_apart() -> Iterator[None]:
    """In this block, the log is written by a thread of its own."""
    changed = []
    for handler in logging.getLogger().handlers:
        if not isinstance(handler, logging.StreamHandler):
            continue
        with suppress(UnsupportedOperation):  # it has no descriptor: it is in memory
            writer, stream = LineWriter(handler.stream.fileno()), handler.stream
            handler.setStream(writer)
            changed.append((handler, writer, stream))
    try:
        yield
    finally:
        for handler, writer, stream in changed:
            if writer.close():
                handler.setStream(stream)
