"""`streamd publish`: JSON lines in, messages out."""

import io
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import anyio
import click
from rich.progress import Progress

from segments.words import plural
from streamd.cli.asking import ask
from streamd.cli.common import retry_option, run_client, uri_option, virtual_host
from streamd.cli.filter_property import FilterProperty
from streamd.cli.pipes import read_some, until_interrupted
from streamd.cli.terminal import Failed, Interrupted, note, notes, shown
from streamd.operations.names import Name, as_sent
from streamd.operations.stream_views import GetStream

if TYPE_CHECKING:
    from clients import Client, Message, Producer

_READ_BYTES = 64 << 10
_MAX_LINE_BYTES = 16 << 20  # a frame in JSON: up to 12 bytes for 4, and room for spaces
_MAX_TOLD = 10  # lines that are no messages; the others are counted
_SHOWN_CHARACTERS = 60  # of such a line
_PATIENCE_SECONDS = 1  # without a confirm
_LONGEST_PAUSE = 60  # seconds, before it is asked again what is the matter
_ANSWER_SECONDS = 5  # of a server that is asked why
_FLUSH_SECONDS = 5  # after Ctrl-C
_EXAMPLE = '{"body": "hello"}'


@click.command()
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--filter-property",
    metavar="P",
    help="Publish each message with the value of its property P as its filter value: a string, or "
    "a number as in JSON. Only for a stream without a filter property of its own; where there is "
    "one, messages get its value by themselves, and a number is none.",
)
@click.option(
    "--producer",
    default="",
    metavar="NAME",
    help="A durable name for what is published: lines whose numbers were published under it "
    "before are skipped.",
)
@retry_option
@uri_option
def publish(
    name: str,
    file: BinaryIO,
    uri: str,
    filter_property: str | None,
    producer: str,
    retry_seconds: float,
) -> None:
    """Publish the lines of FILE, or of stdin, to the stream NAME.

    Each line is a JSON object. Its key "body" becomes the body of a message, its other keys
    become application properties; lists and objects among them are kept as JSON strings.

    Lines are sent as they come. A line that is not a message is reported, and the others are
    published; with --producer, publishing ends there, so that the corrected file can be published
    again. So it does at a message that the server refuses. Ctrl-C ends reading, and waits for what
    was sent.

    With --retry, give a --producer too, or messages whose confirm was lost are stored twice.

    \b
    Examples:
      echo '{"body": "hello", "carrier": "HA"}' | streamd publish flights
      streamd publish flights flights.jsonl
    """
    declared = FilterProperty(filter_property)

    publication, host = _Publication(name, producer, declared), virtual_host(uri)

    async def work(client: "Client") -> None:
        from clients import PreconditionFailed  # noqa: PLC0415 - not needed to show the help

        try:
            await publish_with(client)
        except PreconditionFailed:  # the protocol does not say why
            why = await _trouble(client, host, name)
            if publication.begun or not why:
                raise
            raise Failed(f"cannot publish to {shown(name)}: {why}") from None

    async def publish_with(client: "Client") -> None:
        await declared.learn(client, name)
        async with (
            client.producer(name, name=producer) as sink,
            anyio.create_task_group() as telling,
        ):
            telling.start_soon(publication.tell_why_it_waits, uri, sink, host)
            await publication.run(sink, file)
            telling.cancel_scope.cancel()

    try:
        run_client(uri, work, retry_seconds)
    except Failed as failed:
        if publication.begun:
            raise type(failed)(f"{failed.message}; {publication.summary()}") from failed
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {publication.summary()}") from None
    if publication.refused:
        what = plural(publication.refused, "line is not a message", "lines are not messages")
        raise Failed(f"{what}; {publication.summary()}")
    note(publication.summary())
    declared.tell()


async def _trouble(client: "Client", host: Name, stream: str) -> str:
    """Why a stream takes no messages, as far as the server says."""
    from clients import StreamError  # noqa: PLC0415 - not needed to show the help

    if client.is_streamd:
        with suppress(StreamError):
            return (await ask(client, GetStream(vhost=host, stream=as_sent(stream)))).trouble
    return ""


async def _trouble_elsewhere(uri: str, host: Name, stream: str) -> str:
    """The same over another connection: that of a publisher that has to wait is not read."""
    from clients import StreamError, connect  # noqa: PLC0415 - as above

    with suppress(StreamError, OSError), anyio.move_on_after(_ANSWER_SECONDS):
        async with connect(uri, name="streamd command line") as client:
            if why := await _trouble(client, host, stream):
                return why
    return "the server has not confirmed what was sent"


class BadLine(Exception):
    """A line that is no message, or none that can be published; says why."""


@dataclass(slots=True)
class _Publication:
    """What became of the lines of a file.

    Attributes:
        producer: a durable name, empty for none.
        declared: reads their filter values.
        stored: messages that the server has confirmed.
        unconfirmed: messages of which it is not known whether they are stored.
        skipped: lines that the producer had published before.
        refused: lines that are no messages.
        begun: the stream is there and takes messages.
    """

    stream: str
    producer: str
    declared: FilterProperty
    stored: int = 0
    unconfirmed: int = 0
    skipped: int = 0
    refused: int = 0
    begun: bool = False

    async def tell_why_it_waits(self, uri: str, sink: "Producer", host: Name) -> None:
        """Say why nothing is confirmed, when that takes more than a moment."""
        confirmed, told, pause = -1, "", float(_PATIENCE_SECONDS)
        while True:
            await anyio.sleep(pause)
            is_stuck = sink.num_unconfirmed and sink.num_confirmed == confirmed
            confirmed = sink.num_confirmed
            if not is_stuck:
                pause = _PATIENCE_SECONDS
                continue
            pause = min(2 * pause, _LONGEST_PAUSE)  # each time it connects, and that is logged
            why = await _trouble_elsewhere(uri, host, self.stream)
            if why != told:
                note(f"waiting: {why}")
                told = why

    async def run(self, sink: "Producer", file: BinaryIO) -> None:
        """Publish the lines of a file, or those before Ctrl-C.

        Raises:
            Failed: it cannot be read, or a line of a named producer is no message or refused.
            Interrupted: by Ctrl-C; what was sent had a while to be confirmed.
            StreamError: the stream or the connection is gone, or messages were refused.
        """
        self.begun = True
        try:
            with until_interrupted() as reading:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(sink.wait_until_lost)  # lines may be long in coming
                    with self._naming_lines():
                        await self._send_lines(sink, file)
                    tasks.cancel_scope.cancel()
            is_interrupted = reading.cancelled_caught
            with anyio.move_on_after(_FLUSH_SECONDS if is_interrupted else None):
                with self._naming_lines():
                    await sink.flush()
            if is_interrupted:  # an error, so that the producer does not wait for the rest
                raise Interrupted("interrupted")
        finally:
            self.stored, self.unconfirmed = sink.num_confirmed, sink.num_unconfirmed

    @contextmanager
    def _naming_lines(self) -> Iterator[None]:
        """Numbers that the server refuses to a producer with a name are those of lines."""
        from clients import PublishFailed  # noqa: PLC0415 - as below
        from streamd.wire.stream import text_of  # noqa: PLC0415

        try:
            yield
        except PublishFailed as failed:
            if not self.producer:
                raise
            number, code = failed.refused[0]
            why = f"line {number} is not accepted: {text_of(code)}; nothing behind it is published"
            raise Failed(why) from failed

    async def _send_lines(self, sink: "Producer", file: BinaryIO) -> None:
        known = sink.last_publishing_id if self.producer else 0
        with _progress(file) as advance:
            async with aclosing(_lines(file, advance)) as lines:
                async for number, line in lines:
                    if number <= known:
                        self.skipped += 1
                    elif line is None or line.strip():
                        await self._send(sink, number, line)

    async def _send(self, sink: "Producer", number: int, line: bytes | None) -> None:
        try:
            raw = _message(line).encode()
            # The publishing id of a named producer is the line number, by which the server
            # recognizes lines that are sent again.
            publishing_id = number if self.producer else None
            await sink.send_encoded(raw, self.declared.value(raw), publishing_id)
        except (BadLine, ValueError) as error:
            is_bad = isinstance(error, BadLine)
            why = f"line {number} {'' if is_bad else 'cannot be published: '}{error}"
            if self.producer:
                await sink.flush()
                raise Failed(why) from error
            self.refused += 1
            if self.refused <= _MAX_TOLD:
                note(why)

    def summary(self) -> str:
        """What became of them, in words."""
        words = f"published {plural(self.stored, 'message')} to {shown(self.stream)}"
        if self.unconfirmed:
            words += f", and may have published {self.unconfirmed:,} more"
        if self.skipped:
            words += (
                f"; skipped {plural(self.skipped, 'line')} whose numbers {shown(self.producer)} "
                "had published before: lines of another file need another --producer"
            )
        return words


@contextmanager
def _progress(file: BinaryIO) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal for a regular file; yields a function that takes bytes read."""
    total = _size(file)
    is_shown = sys.stderr.isatty() and total is not None
    with Progress(console=notes(), disable=not is_shown, transient=True) as progress:
        task = progress.add_task("publishing", total=total)
        yield lambda read: progress.advance(task, read)


def _size(file: BinaryIO) -> int | None:
    """The size of a regular file in bytes, None for a pipe or a terminal."""
    try:
        size = os.fstat(file.fileno()).st_size
    except (OSError, io.UnsupportedOperation):
        return None
    return size or None


async def _lines(
    file: BinaryIO, advance: Callable[[int], None]
) -> AsyncGenerator[tuple[int, bytes | None]]:
    """Line numbers, from 1, and lines as they come; None for one that is far too long.

    Raises:
        Failed: the file cannot be read.
    """
    number, begun, is_long = 1, bytearray(), False
    while True:
        try:
            data = await read_some(file, _READ_BYTES)
        except OSError as error:
            name = file.name if isinstance(file.name, str) else "<stdin>"
            raise Failed(f"cannot read {name}: {error.strerror}") from error
        advance(len(data))
        first, *others = data.split(b"\n")
        begun += first
        for following in others:
            yield number, None if is_long else bytes(begun)
            number, begun, is_long = number + 1, bytearray(following), False
        if len(begun) > _MAX_LINE_BYTES:
            begun, is_long = bytearray(), True
        if not data:
            break
    if begun or is_long:
        yield number, None if is_long else bytes(begun)


def _message(line: bytes | None) -> "Message":
    """The message that a line stands for.

    Raises:
        BadLine: it stands for none.
    """
    from segments.message_json import message_of  # noqa: PLC0415 - not needed to show the help

    if line is None:
        raise BadLine(f"is longer than {_MAX_LINE_BYTES:,} bytes")
    try:
        found = json.loads(line)
    except RecursionError:
        raise BadLine("is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"{error.msg} at character {error.pos + 1}"
        raise BadLine(f"is not JSON: {where}; a line looks like {_EXAMPLE}") from error
    except UnicodeDecodeError as error:
        raise BadLine(f"is not JSON: {error}") from error
    except ValueError:  # Python's own limit, of thousands of digits
        raise BadLine("has a number that does not fit into 64 bits") from None
    if not isinstance(found, dict):
        start = line.strip()[:_SHOWN_CHARACTERS].decode(errors="replace")
        raise BadLine(f"is not a JSON object: {start!r}")
    try:
        return message_of(found)
    except ValueError as error:
        raise BadLine(str(error)) from error
