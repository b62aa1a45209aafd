"""What commands print: data to stdout, notes to stderr, and nothing that acts on a terminal.

Names come from other users, with brackets, escape sequences and line ends in them. They are shown
as they are, or in quotes with escapes where a terminal would obey them.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # loaded where something is drawn, which the server never does
    from rich.console import Console, RenderableType

_WIDTH = 100  # of paragraphs, without a terminal
_TABLE_WIDTH = 1 << 16  # rows are not broken: a terminal does that, a script wants a row in a line


class Failed(click.ClickException):
    """A command was refused or failed: one line, exit 1."""

    def format_message(self) -> str:
        """The line."""
        return escaped(self.message)


class Misused(Failed):
    """A command was not understood: one line, exit 2."""

    exit_code = 2


class BadSelector(Misused):
    """A selector was not understood: a line, then the selector with its place marked."""

    def format_message(self) -> str:
        """The lines."""
        return "\n".join(map(escaped, self.message.split("\n")))


class Interrupted(Failed):
    """Ctrl-C has ended a command: one line, exit 130 as shells have it."""

    exit_code = 130

    def show(self, file: Any = None) -> None:  # noqa: ANN401 - as in click
        """Say so; it is no error."""
        click.echo(self.format_message(), file=file or sys.stderr)


class ReaderLeft(Exception):
    """Whoever reads stdout wants no more, as `head`: a normal end, of which nothing is said."""


def escaped(text: str) -> str:
    """A text in which every character is visible: line ends and escape sequences are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(name: str) -> str:
    """A name as it is; in quotes, with escapes, where it has characters that cannot be seen."""
    return name if name.isprintable() else repr(name)


def note(text: str) -> None:
    """A line on stderr; a command does not fail because nobody can read its notes."""
    with suppress(OSError):
        click.echo(escaped(text), err=True)


def notes() -> "Console":
    """For progress bars: stderr."""
    from rich.console import Console  # noqa: PLC0415 - as above

    return Console(stderr=True, highlight=False)


@contextmanager
def telling_of_stdout() -> Iterator[None]:
    """Turn the system's errors in writing to stdout into those of commands."""
    try:
        yield
    except BrokenPipeError as error:
        drop_unwritten(sys.stdout)
        raise ReaderLeft from error
    except OSError as error:
        drop_unwritten(sys.stdout)
        raise Failed(f"cannot write to stdout: {error.strerror}") from error


def drop_unwritten(stream: IO[str]) -> None:
    """Forget what could not be written, or Python complains of it once more when it ends."""
    try:
        stream.flush()
    except OSError:
        descriptor = descriptor_of(stream)
        if descriptor is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    except ValueError:  # it is closed
        pass


def write(text: str) -> None:
    """A text and a line end on stdout.

    Raises:
        Failed: it cannot be written, as when the disk is full.
        ReaderLeft: nobody reads any more.
    """
    with telling_of_stdout():
        click.echo(text)


def write_json(value: object) -> None:
    """A value as one line of JSON on stdout; raises as `write` does."""
    write(json_line(value))


def json_line(value: object) -> str:
    """A value as JSON, with escapes for what the encoding of stdout does not have."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(stdout_encoding())
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def stdout_encoding() -> str:
    """How text is written to stdout."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def descriptor_of(file: Any) -> int | None:  # noqa: ANN401 - whatever stands for a file
    """The descriptor of a file; None for one in memory."""
    try:
        return int(file.fileno())
    except (AttributeError, OSError, io.UnsupportedOperation):
        return None


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> None:
    """A table on stdout, a line for each row.

    Args:
        columns: their headings; none shows no headings.
        rows: as many strings each.
        right: l or r for each column, where they are aligned; all to the left without.
    """
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False, show_header=bool(columns))
    for n, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if right[n : n + 1] == "r" else "left")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    show(table)


def show(thing: "RenderableType") -> None:
    """A table of rich on stdout, as wide as it is; raises as `write` does."""
    lines = _rendered(_TABLE_WIDTH, thing, crop=False).splitlines()
    write("\n".join(line.rstrip() for line in lines))


def show_paragraphs(text: str, *, markup: bool = False, width: int = _WIDTH) -> None:
    """Text on stdout, in lines as wide as a terminal, but not too wide to be read."""
    if sys.stdout.isatty():
        width = min(width, shutil.get_terminal_size().columns)
    write(_rendered(width, text, highlight=False, markup=markup).removesuffix("\n"))


def _rendered(width: int, thing: "RenderableType", **options: Any) -> str:  # noqa: ANN401 - of rich
    """As rich prints it on a terminal, if stdout is one; it writes nothing itself."""
    from rich.console import Console  # noqa: PLC0415 - as above

    text = io.StringIO()
    Console(file=text, width=width, force_terminal=sys.stdout.isatty()).print(thing, **options)
    return text.getvalue()
