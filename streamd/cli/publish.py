"""`streamd publish`: JSON lines in, messages out."""

import io
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from rich.progress import Progress, TaskID

from streamd.cli.common import Failed, count, notes, retry_option, run_client, uri_option

if TYPE_CHECKING:
    from clients import Client, Message

_REFRESH_MESSAGES = 1000


@click.command()
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--filter-property",
    metavar="P",
    help="Publish each message with the value of its property P as its filter value.",
)
@click.option(
    "--producer",
    default="",
    metavar="NAME",
    help="A durable name: the server then ignores lines that it already has under this name.",
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

    With --retry, give a --producer too, or messages whose confirm was lost are stored twice.

    \b
    Examples:
      echo '{"body": "hello", "carrier": "HA"}' | streamd publish flights
      streamd publish flights --filter-property carrier flights.jsonl
    """

    async def work(client: "Client") -> int:
        def value_of(message: "Message") -> str | None:
            value = message.application_properties.get(filter_property or "")
            return None if value is None else _text(value)

        filter_value = value_of if filter_property else None
        total = 0
        with _progress(file) as progress:
            task = progress.add_task("publishing", total=_size(file))
            async with client.producer(name, name=producer, filter_value=filter_value) as sink:
                try:
                    for number, message in _messages(file, progress, task):
                        # The publishing id of a named producer is the line number, by which the
                        # server recognizes lines that are sent again.
                        await sink.send(message, publishing_id=number if producer else None)
                        total += 1
                except Failed as failed:
                    await sink.flush()
                    before = "nothing was published"
                    if total:
                        before = f"the {count(total, 'message')} before it went to {name}"
                    raise Failed(f"{failed.message}; {before}") from failed
        return total

    total = run_client(uri, work, retry_seconds)
    notes().print(f"published {count(total, 'message')} to {name}")


def _progress(file: BinaryIO) -> Progress:
    is_shown = sys.stderr.isatty() and _size(file) is not None
    return Progress(console=notes(), disable=not is_shown, transient=True)


def _size(file: BinaryIO) -> int | None:
    """The size of a regular file in bytes, None for a pipe or a terminal."""
    try:
        size = os.fstat(file.fileno()).st_size
    except (OSError, io.UnsupportedOperation):
        return None
    return size or None


def _messages(file: BinaryIO, progress: Progress, task: TaskID) -> Iterator[tuple[int, "Message"]]:
    """Line numbers, from 1, and messages; empty lines are skipped."""
    read = 0
    for number, line in enumerate(file, 1):
        read += len(line)
        if number % _REFRESH_MESSAGES == 0:
            progress.update(task, completed=read)
        if line.strip():
            yield number, _message(line, number)


def _message(line: bytes, number: int) -> "Message":
    from clients import Message  # noqa: PLC0415 - only commands that talk to a server need it

    try:
        found = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Failed(f"line {number} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Failed(f"line {number} is not a JSON object: {line.strip()[:60].decode()!r}")
    body = found.pop("body", "")
    properties = {key: _simple(value) for key, value in found.items()}
    for key, value in properties.items():
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise Failed(f"line {number}: {key} is {value}, which does not fit into 64 bits")
    return Message(_text(body).encode(), application_properties=properties)


def _simple(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(value) if isinstance(value, list | dict) else value


def _text(value: Any) -> str:  # noqa: ANN401 - whatever JSON holds
    return value if isinstance(value, str) else json.dumps(value)
