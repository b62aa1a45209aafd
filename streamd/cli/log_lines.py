"""The log as lines: what a message says, whoever has chosen the words in it, stays in its line.

Names come from peers: with line ends or terminal escapes in them they could forge lines, and one
of 65 kB fills the disk. So every message is escaped and cut here, where all of them pass, and not
where names are logged. The peer that a line was logged for stands at its end.
"""

import logging

from streamd.net.actor import with_actor

START, END = 1_000, 500  # characters of a long message that are kept, so that its end is there
TRACEBACK = 20_000


class OneLine(logging.Formatter):
    """Each message in one line of bounded length; tracebacks below it are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - named by logging
        """See logging."""
        record.message = escaped(with_actor(shortened(record.message, START, END)))
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - named by logging
        """See logging; no line of it can be taken for one of the log."""
        text = super().formatException(ei)  # type: ignore[arg-type]
        short = shortened(text, TRACEBACK // 2, TRACEBACK // 2)
        return "\n".join(f"  {escaped(line)}" for line in short.split("\n"))


def shortened(text: str, start: int, end: int) -> str:
    """A text, or where it is much longer its start and end, and how much is left out."""
    left_out = len(text) - start - end
    if left_out <= 0:
        return text
    return f"{text[:start]} [{left_out:,} characters] {text[-end:]}"


def escaped(text: str) -> str:
    """A text in which line ends, escapes and whatever cannot be shown stand as in Python."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
