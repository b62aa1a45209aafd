"""`streamd find`: single messages, found by the server."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from segments.times import time_ms
from segments.words import plural, size
from streamd.cli.common import Dependent, Number, WholeNumber, retry_option, run_client, uri_option
from streamd.cli.consume import as_json
from streamd.cli.pipes import write_lines
from streamd.cli.terminal import Misused, json_line, note

if TYPE_CHECKING:
    from clients import Client, Finding

_MAX_LIMIT = 1_000_000
_MAX_OFFSET = (1 << 63) - 1
_LINES_A_TURN = 100
_SECONDS = 60


@click.command()
@click.argument("name")
@click.option(
    "--key", "keys", multiple=True, metavar="K", help="A key of messages; may be repeated."
)
@click.option(
    "--property",
    "properties",
    cls=Dependent,
    needs=("keys",),
    multiple=True,
    metavar="P",
    help="Where the key stands: the name of a property, as order_id or properties.message_id; may "
    "be repeated. Default: the key properties of the stream.",
)
@click.option("--from", "start", metavar="TIME", help="Only messages stored then or later.")
@click.option("--to", "end", metavar="TIME", help="Only messages stored then or earlier.")
@click.option(
    "--by",
    cls=Dependent,
    needs=("start", "end"),
    type=click.Choice(["chunk-time", "creation-time"]),
    default="chunk-time",
    show_default=True,
    help="The time of --from and --to: when messages were stored, or their own creation_time.",
)
@click.option("--sql", metavar="EXPR", help="Only messages for which this condition is true.")
@click.option("--tags", metavar="A||B", help="Only messages whose property TAGS is one of these.")
@click.option(
    "--dialect",
    cls=Dependent,
    needs=("sql",),
    type=click.Choice(["union", "rocketmq", "amqp"]),
    default="union",
    show_default=True,
    help="The rules for --sql, as for consume.",
)
@click.option(
    "--filter",
    "values",
    multiple=True,
    metavar="V",
    help="Only messages with this filter value, on a stream with a filter property; may be "
    "repeated.",
)
@click.option("--newest", is_flag=True, help="The newest message first; without it, the oldest.")
@click.option(
    "--latest",
    cls=Dependent,
    needs=("keys",),
    is_flag=True,
    help="Only the newest message of each key.",
)
@click.option(
    "--offset",
    type=WholeNumber(0, _MAX_OFFSET),
    metavar="N",
    help="Begin with this message; with --newest, go back from it.",
)
@click.option(
    "--limit",
    type=WholeNumber(1, _MAX_LIMIT),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many messages, up to 1,000,000.",
)
@click.option("--after", default="", metavar="TOKEN", help="Go on where the search was cut.")
@click.option(
    "--seconds",
    type=Number(may_be_infinite=True),
    default=_SECONDS,
    show_default=True,
    metavar="S",
    help="Stop the search after so many seconds.",
)
@click.option("--explain", is_flag=True, help="Say on stderr what was looked at.")
@retry_option
@uri_option
def find(  # noqa: PLR0913 - each an option
    name: str,
    uri: str,
    start: str | None,
    end: str | None,
    limit: int,
    seconds: float,
    retry_seconds: float,
    *,
    by: str,
    after: str,
    explain: bool,
    **options: Any,  # noqa: ANN401 - as they are declared
) -> None:
    """Find messages of the stream NAME by key, time or condition.

    They are printed as JSON lines, as by consume. A message matches if it has one of the keys, in
    one of the properties, and all else is true of it as well. A key that spells a number also finds
    that number. TIME is in ms since 1970, or as 2026-11-21T09:00:00Z; both ends belong to the
    range. Without a key it browses the stream. On stderr it says whether that was all; if not,
    --after with the same options goes on.

    \b
    Examples:
      streamd find orders --key 4711
      streamd find orders --key 4711 --property order_id --newest --limit 1
      streamd find orders --key 4711 --key 4712 --latest
      streamd find orders --from 2026-11-21T09:00:00Z --sql "region = 'EU'"
    """
    _check_properties(options["properties"])
    if options["sql"] is not None and options["tags"] is not None:
        raise Misused("--sql and --tags exclude each other")
    first, last = _time("--from", start), _time("--to", end)
    if first is not None and last is not None and last < first:
        raise Misused("--to is before --from")
    options["filter_values"] = options.pop("values")
    options["key"] = options.pop("keys")

    async def work(client: "Client") -> None:
        found = client.find(
            name,
            limit=limit,
            after=after,
            seconds=seconds,
            start=first,
            end=last,
            by_creation_time=by == "creation-time",
            **options,
        )
        printed = await _print(found)
        note(_outcome(found, printed))
        if found.hint:
            note(found.hint)
        if found.looked_at["chunks_damaged"]:
            note(_damage(found.looked_at))
        if explain:
            for line in _looked_at(found.looked_at, has_keys=bool(options["key"])):
                note(line)

    run_client(uri, work, retry_seconds)


def _check_properties(names: Iterable[str]) -> None:
    from segments.selector import (  # noqa: PLC0415 - not needed to show the help
        SelectorError,
        parse_property,
    )

    for name in names:
        try:
            parse_property(name)
        except SelectorError as error:
            raise Misused(f"--property is {name!r}: {error.reason}") from error


async def _print(found: "Finding") -> int:
    """Print all that is found; how many messages."""
    printed, lines = 0, []
    async for message in found:
        lines.append(json_line(as_json(message)))
        if len(lines) == _LINES_A_TURN or not found.has_more:
            await write_lines(lines)
            printed += len(lines)
            lines = []
    await write_lines(lines)
    return printed + len(lines)


def _outcome(found: "Finding", printed: int) -> str:
    what = f"found {plural(printed, 'message')}"
    if found.cut is None:
        return f"{what}: the search is complete" if printed else "no messages match"
    why = {"limit": "the limit", "budget": "the time limit"}[found.cut]
    return f"{what}: cut by {why}; there may be more, go on with --after {found.after}"


def _damage(counts: dict[str, int]) -> str:
    chunks, lost = counts["chunks_damaged"], plural(counts["messages_lost"], "message")
    are = "is" if chunks == 1 else "are"
    return f"{plural(chunks, 'chunk')} {are} damaged, {lost} left out: the server's log says where"


def _looked_at(counts: dict[str, int], *, has_keys: bool) -> Iterator[str]:
    """What the server has looked at, for --explain."""
    segments, indexed = counts["segments"], counts["segments_indexed"]
    if has_keys and indexed < segments:
        yield (
            f"segments: {segments:,} searched, {segments - indexed:,} of them scanned, as no index "
            "has all their keys (yet)"
        )
    else:
        yield f"segments: {segments:,} searched" + (", by their key index" if has_keys else "")
    yield (
        f"chunks: {counts['chunks_read']:,} read ({size(counts['bytes_read'])}); skipped "
        f"{counts['chunks_skipped_by_time']:,} by time, {counts['chunks_skipped_by_keys']:,} by "
        f"key index, {counts['chunks_skipped_by_filter']:,} by filter"
    )
    yield (
        f"messages: {counts['messages_tested']:,} tested, {counts['messages_screened']:,} ruled out"
    )


def _time(option: str, text: str | None) -> int | None:
    """A time in ms since 1970; one without a zone is that of this machine."""
    if text is None:
        return None
    found = time_ms(text)
    if found is None:
        raise Misused(
            f"{option} is {text!r}, expected a number of ms since 1970, or a time as in "
            "2026-11-21T09:00:00Z"
        )
    return found
