"""`streamd consume`: messages out, as JSON lines."""

import os
from collections.abc import Iterable
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from segments.filter_stats import why_nothing_is_saved
from segments.message_json import message_json
from segments.words import plural, size, whole_number
from streamd.cli.common import Dependent, WholeNumber, moment, retry_option, run_client, uri_option
from streamd.cli.filter_property import FilterProperty
from streamd.cli.pipes import write_lines
from streamd.cli.terminal import BadSelector, Misused, json_line, note

if TYPE_CHECKING:
    from clients import Client, Consumer, ReceivedMessage

_DAMAGED = 'messages with "damaged" have parts that cannot be read; "raw" has their bytes'
_EVERY_CHUNK = "asks for every chunk"
_NAMED = ("first", "last", "next")


@click.command()
@click.argument("name")
@click.option(
    "--offset",
    default="first",
    show_default=True,
    metavar="first|last|next|N|TIME",
    help="Where to begin: the oldest message, the last chunk, the next new message, an offset, "
    "or a time as in 2026-11-20T10:00:00Z: messages stored since then, without those of the first "
    "chunk whose creation_time is before it.",
)
@click.option(
    "--from-beginning", is_flag=True, help="Begin with the oldest message; the same as first."
)
@click.option(
    "--tail",
    type=WholeNumber(0),
    metavar="N",
    help="Begin with the last N messages.",
)
@click.option(
    "--filter",
    "values",
    multiple=True,
    metavar="V",
    help="Only chunks in which some message may have this filter value; may be repeated.",
)
@click.option(
    "--match-unfiltered",
    cls=Dependent,
    needs=("values",),
    is_flag=True,
    help="Also messages without a filter value.",
)
@click.option(
    "--filter-property",
    cls=Dependent,
    needs=("values",),
    metavar="P",
    help="With --filter: only messages whose property P (a string, bytes, or a number as in JSON) "
    "is one of the values, instead of whole chunks.",
)
@click.option(
    "--sql",
    metavar="EXPR",
    help="Only messages for which this SQL92 condition over their properties is true.",
)
@click.option("--tags", metavar="A||B", help="Only messages whose property TAGS is one of these.")
@click.option(
    "--dialect",
    cls=Dependent,
    needs=("sql",),
    type=click.Choice(["union", "rocketmq", "amqp"]),
    default="union",
    show_default=True,
    help="The rules for --sql: rocketmq as in RocketMQ, amqp as in RabbitMQ's SQL filters.",
)
@click.option("--group", default="", metavar="G", help="Use the standing selector of group G.")
@click.option("--explain", is_flag=True, help="Say on stderr which chunks are wanted, and why.")
@click.option("--limit", type=WholeNumber(1), metavar="N", help="Stop after N messages.")
@click.option(
    "--until-end",
    is_flag=True,
    help="Stop at the present end of the stream instead of waiting for more.",
)
@retry_option
@uri_option
def consume(  # noqa: PLR0913 - each an option
    name: str,
    uri: str,
    offset: str,
    values: tuple[str, ...],
    filter_property: str | None,
    limit: int | None,
    retry_seconds: float,
    tail: int | None,
    *,
    from_beginning: bool,
    match_unfiltered: bool,
    until_end: bool,
    explain: bool,
    **selector: str | None,
) -> None:
    """Print the messages of the stream NAME as JSON lines.

    Each line has offset, timestamp, body (as base64, with "encoding", when it is not UTF-8),
    properties (the application properties) and, where there are any, message_properties
    (subject, message_id, …). A message of which a part cannot be read has its other parts, the
    reason as "damaged", and all its bytes as "raw", in base64.

    \b
    Examples:
      streamd consume flights --until-end
      streamd consume flights --filter HA --filter-property carrier --limit 10
      streamd consume flights --sql "carrier = 'HA' AND dep_delay > 60" --explain
      streamd consume flights --offset next
      streamd consume flights --tail 10
    """
    asked = _asked(values, **selector)
    declared = FilterProperty(filter_property)
    start = _offset("first" if from_beginning else offset)
    if tail is not None and (from_beginning or offset != "first"):
        raise Misused("--tail says where to begin, so --offset and --from-beginning cannot")

    async def work(client: "Client") -> None:
        printed, is_whole = 0, True
        begin = start if tail is None else await _before_end(client, name, tail)
        async with client.consumer(
            name,
            offset=begin,
            filter_values=[os.fsencode(value) for value in values],
            match_unfiltered=match_unfiltered,
            filter_value=declared.name,
            sql=asked.sql,
            tags=asked.tags,
            dialect=asked.dialect,
            group=asked.group,
            until_end=until_end,
        ) as messages:
            if explain:
                _tell(messages.explain())
            async with aclosing(messages.batches()) as batches:
                async for batch in batches:
                    found = [as_json(message) for message in batch[: limit and limit - printed]]
                    await write_lines([json_line(row) for row in found])
                    printed += len(found)
                    if is_whole and any("damaged" in row for row in found):
                        is_whole = False
                        note(_DAMAGED)
                    if printed == limit:
                        break
            received, declared.num_others = messages.counts, messages.num_others
            hints = filter(None, [messages.hint])
            if declared.num_others:
                await declared.learn(client, name)
            if explain:
                _tell(await _summary(messages, client))
        if values or asked != _NO_SELECTOR:
            note(
                f"printed {printed:,} of {plural(received.messages, 'delivered message')} "
                f"({plural(received.chunks, 'chunk')})"
            )
            _tell(hints)
        declared.tell()

    run_client(uri, work, retry_seconds)


async def _before_end(client: "Client", stream: str, number: int) -> int:
    """The offset so many messages before the end that the stream has now."""
    found = await client.stats(stream)
    return max(0, found["committed_offset"] + 1 - number)


class _Asked(NamedTuple):
    """The options that make up a selector."""

    sql: str | None = None
    tags: str | None = None
    dialect: str = "union"
    group: str = ""


_NO_SELECTOR = _Asked()


def _asked(values: tuple[str, ...], **options: str | None) -> _Asked:
    """The selector, checked before anything is sent."""
    from segments.selector import (  # noqa: PLC0415 - not needed to show the help
        TAGS,
        SelectorError,
        parse_selector,
    )

    if "" in values:
        raise Misused("--filter is empty; --match-unfiltered adds messages without a filter value")
    asked = _Asked(**options)  # type: ignore[arg-type] # as they are declared above
    if sum(map(bool, (values, asked.sql is not None, asked.tags is not None))) > 1:
        raise Misused("--filter, --sql and --tags exclude one another")
    try:
        if asked.sql is not None:
            parse_selector(asked.dialect, asked.sql)
        if asked.tags is not None:
            parse_selector(TAGS, asked.tags)
    except SelectorError as error:
        raise BadSelector(str(error)) from error
    return asked


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        note(line)


async def _summary(messages: "Consumer", client: "Client") -> list[str]:
    """What happened to the stream's chunks and messages, for --explain."""
    counts = messages.counts
    lines = [
        f"chunks: {counts.chunks:,} delivered, {counts.false_chunks:,} of them without a match",
        f"messages: {counts.messages:,} tested, {counts.matched:,} matched",
    ]
    if messages.undecodable:
        lines.append(f"{plural(messages.undecodable, 'message')} could not be read: no match")
    if client.is_streamd:
        progress = await messages.progress()
        skipped = progress["skipped_chunks"]
        lines[0] += f"; {skipped:,} skipped ({size(progress['skipped_bytes'])})"
        if skipped and progress["unfiltered_chunks"] == skipped and not counts.chunks:
            lines.append(
                "nothing was delivered: no message in the skipped chunks has a filter value; "
                "were they published without one?"
            )
        if counts.chunks and not skipped and _EVERY_CHUNK not in messages.explain():
            why = why_nothing_is_saved(await client.describe_filters(messages.stream))
            lines += [f"filters save nothing: {why}"] if why else []
    return lines


def _offset(text: str) -> str | int | datetime:
    if text in _NAMED:
        return text
    number = whole_number(text)
    found = moment(text) if number is None else number
    if found is None:
        raise Misused(
            f"--offset is {text!r}, expected first, last, next, a number, or a time as in "
            "2026-11-20T10:00:00Z"
        )
    return found


def as_json(message: "ReceivedMessage") -> dict[str, Any]:
    """A message as one JSON object."""
    return message_json(message, message.offset, message.timestamp_ms)
