"""`streamd stream create|set|list|info|truncate|delete`: manage streams."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from segments.filter_stats import why_nothing_is_saved
from segments.times import whole_ms
from segments.words import percent, rate, size, whole_number
from streamd.cli.asking import ask
from streamd.cli.common import (
    Commands,
    Dependent,
    json_option,
    moment,
    run_client,
    uri_option,
    virtual_host,
)
from streamd.cli.terminal import Failed, Misused, note, show_table, shown, write_json
from streamd.cli.tier import stream_text
from streamd.operations.arguments import ARGUMENTS, MAX_AGE, MAX_LENGTH, Argument, as_typed
from streamd.operations.names import as_sent
from streamd.operations.stream_views import ListStreams, StreamSummary
from streamd.operations.streams import CreateStream
from streamd.operations.tier_reports import StreamTier, from_row, plain

if TYPE_CHECKING:
    from clients import Client, StreamInfo

_DEFAULT = "default"
_MILLION = 1_000_000
_LIFE = "life"  # an id, which says nothing to people; it is in the JSON
_KEY_FIGURES = ("key_segments_", "key_index_")
_SEALED = "key_segments_sealed"
_LIMITS = {MAX_LENGTH, MAX_AGE}
_VALUES_OF = "values."  # of a further filter property


FC = TypeVar("FC", bound=Callable[..., Any])


def _argument_options(*, changing: bool) -> Callable[[FC], FC]:
    """Options for the arguments that a stream is declared with.

    Args:
        changing: of a stream that exists; those that cannot be changed are left out.
    """

    def decorate(command: FC) -> FC:
        for argument in reversed(list(ARGUMENTS.values())):
            if argument.option and (argument.changes or not changing):
                command = _option(argument, changing=changing)(command)
        return command

    return decorate


def _option(argument: Argument, *, changing: bool) -> Callable[[FC], FC]:
    kind, needs = argument.kind, "" if changing else argument.needs
    text = argument.meaning.replace("`", "") + "."
    if kind.is_list:
        text += " May be given several times."
    if not changing and argument.default != "none":
        text += f"  [default: {argument.default.replace('`', '')}]"
    return click.option(
        argument.option if kind.metavar else f"{argument.option}/--no-{argument.option[2:]}",
        _key(argument.name),
        cls=Dependent if needs else None,
        metavar=kind.metavar or None,
        is_flag=not kind.metavar,
        default=None,
        multiple=kind.is_list,
        help=text,
        **({"needs": (_key(needs),)} if needs else {}),
    )


def _key(name: str) -> str:
    """The parameter for an argument."""
    return name.replace("-", "_")


def _given(options: Mapping[str, object]) -> dict[str, str]:
    """The arguments that were given."""
    found = {}
    for name in ARGUMENTS:
        match options.get(_key(name)):
            case str() as text:
                found[name] = as_typed(name, text)
            case bool(is_on):
                found[name] = str(is_on).lower()
            case (_, *_) as names:  # a name with a comma stands in brackets
                found[name] = ",".join(map(str, names))
    return found


@click.group(cls=Commands)
def stream() -> None:
    """Create, change, list, inspect and delete streams."""


@stream.command()
@click.argument("name")
@_argument_options(changing=False)
@click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other argument of the protocol; may be repeated.",
)
@click.option("--exist-ok", is_flag=True, help="Succeed if it exists with the same arguments.")
@uri_option
def create(
    name: str,
    uri: str,
    *,
    exist_ok: bool,
    arguments: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of `_argument_options`
) -> None:
    """Create the stream NAME.

    \b
    Examples:
      streamd stream create flights --filter-size 64
      streamd stream create orders --filter-property region
      streamd stream create returns --filter-property kind --filter-property item
      streamd stream create audit --max-age 7D --max-length-bytes 10GB
      streamd stream create orders --key-property order_id --key-property customer
    """
    given = _given(options)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not (key and equals):
            raise Misused(f"--argument is {argument!r}, expected NAME=VALUE")
        if key not in ARGUMENTS:
            near = get_close_matches(key, ARGUMENTS)
            instead = f": did you mean {' or '.join(near)}?" if near else ""
            note(f"{shown(key)} is no argument of a stream, and without effect{instead}")
        given[key] = value

    host = virtual_host(uri)

    async def work(client: "Client") -> None:
        if not client.is_streamd:
            await client.create(name, arguments=given, exist_ok=exist_ok)
            return
        # The protocol's own request does not say what is wrong.
        request = CreateStream(vhost=host, stream=as_sent(name), arguments=given)
        if not (await ask(client, request)).is_new and not exist_ok:
            raise Failed(f"{shown(name)} exists, with the same arguments; --exist-ok takes that")

    run_client(uri, work)
    note(f"created {shown(name)}")


@stream.command(name="set")
@click.argument("name")
@_argument_options(changing=True)
@uri_option
def set_arguments(name: str, uri: str, **options: Any) -> None:  # noqa: ANN401 - as in create
    """Change the stream NAME while it is in use.

    Changes hold from the next chunk on; with other key properties all that is on the disk is
    indexed anew, in the background; what only the tier has is searched without an index of the new
    ones. The value "default" undoes a change or a declaration. Programs can
    still declare the stream with the arguments it was created with.

    \b
    Examples:
      streamd stream set flights --chunk-max-records 50
      streamd stream set flights --filter-size auto --filter-error-rate 0.02
      streamd stream set flights --max-age default
      streamd stream set orders --key-property order_id --key-property customer
    """
    given = _given(options)
    for key, value in options.items():
        if isinstance(value, tuple) and _DEFAULT in value and len(value) > 1:
            option = ARGUMENTS[key.replace("_", "-")].option
            raise Misused(f"{option} {_DEFAULT} takes all of them away, so it stands alone")
    if not given:
        raise Misused("no option says what to change, see --help")
    changes = {key: "" if value == _DEFAULT else value for key, value in given.items()}

    async def work(client: "Client") -> str:
        await client.set_arguments(name, changes)
        return await _what_stays(client, name, changes)

    stays = run_client(uri, work)
    note(f"changed {shown(name)}{stays}")


async def _what_stays(client: "Client", name: str, changes: dict[str, str]) -> str:
    """What to add where new limits remove nothing, as only full segments are ever removed."""
    from clients import StreamError  # noqa: PLC0415 - not needed for --help

    if not _LIMITS & changes.keys():
        return ""
    with suppress(StreamError):
        (found,) = await client.describe(name)
        figures = found.figures
        if figures.get("segments") == 1 and figures["messages"]:
            return (
                f"; its one segment, {size(figures['bytes'])}, stays until it is full, as limits "
                "remove whole segments: a smaller --segment-size has it sealed with the next "
                "message, and streamd stream truncate removes messages at once"
            )
    return ""


@stream.command(name="list")
@json_option
@uri_option
def list_streams(uri: str, *, as_json: bool) -> None:
    """List all streams, with what they keep and who uses them.

    \b
    Example:
      streamd stream list
    """
    host = virtual_host(uri)

    async def work(client: "Client") -> tuple[list[StreamSummary], list["StreamInfo"]]:
        described = await client.describe() if as_json else []
        return await ask(client, ListStreams(vhost=host)), described

    found, described = run_client(uri, work)
    if as_json:
        known = {str(one.stream): msgspec.structs.asdict(one) for one in found}
        write_json([known.get(info.name, {}) | _plain(info) for info in described])
        return
    if not found:
        note("there are no streams; create one: streamd stream create NAME")
        return
    show_table(
        ("stream", "messages", "bytes", "in", "out", "publishers", "consumers", "newest", "state"),
        [(one.stream, *_row(one)) for one in found],
        "lrrrrrrrl",
    )


def _row(one: StreamSummary) -> Iterator[str]:
    yield _known(one.messages, f"{one.messages:,}")
    yield _known(one.size, size(one.size))
    yield _known(one.messages_in, rate(one.messages_in))
    yield _known(one.messages_out, rate(one.messages_out))
    yield f"{one.publishers:,}"
    yield f"{one.consumers:,}"
    yield _known(one.last_ms, _time(one.last_ms))
    yield one.trouble or "running"


def _known(figure: float, text: str) -> str:
    """A figure as it is shown; below 0, nobody knows it, or nothing has happened."""
    return "-" if figure < 0 else text


@stream.command()
@click.argument("name")
@json_option
@uri_option
def info(name: str, uri: str, *, as_json: bool) -> None:
    """Show arguments and figures of the stream NAME.

    Also shows, for the filters of the newest 1,000 chunks, how many bits are set, and how often
    they let a chunk pass for a value that it does not hold: predicted from the bits, and observed.

    \b
    Example:
      streamd stream info flights
    """

    async def work(client: "Client") -> tuple["StreamInfo", dict[str, int], StreamTier | None]:
        (found,) = await client.describe(name)
        filters = await client.describe_filters(name) if found.figures else {}
        return found, filters, await _tier_of(client, name)

    found, filters, tier = run_client(uri, work)
    if as_json:
        row = {**_plain(found), "filters": filters}
        write_json(row if tier is None else row | {"tier": plain(tier)})
        return
    show_table((), _info_rows(found, filters, tier))


async def _tier_of(client: "Client", name: str) -> StreamTier | None:
    """What is in the tier of a stream; None without one, or from an earlier server."""
    from clients import ServerRefused  # noqa: PLC0415 - not needed for --help

    if not client.is_streamd:
        return None
    with suppress(ServerRefused):
        for row in await client.tier_report("tier.stream", stream=name):
            return from_row(StreamTier, row)
    return None


def _info_rows(
    found: "StreamInfo", filters: dict[str, int], tier: StreamTier | None
) -> Iterator[tuple[str, str]]:
    yield "stream", found.name
    yield from found.arguments.items()
    for key, number in found.figures.items():
        if key == _LIFE or key.startswith(_KEY_FIGURES):
            continue
        is_time = key.endswith("_timestamp_ms")
        yield key.removesuffix("_ms").replace("_", " "), _time(number) if is_time else f"{number:,}"
    if not found.figures:
        yield "state", "not available; the server's log says why"
    if _SEALED in found.figures:
        yield "key index", _key_text(found.figures)
    if tier is not None:
        yield "tier", stream_text(tier)
    yield from _filter_rows(filters)


def _key_text(figures: Mapping[str, int]) -> str:
    """How far the key index has come; the newest segment is searched without waiting for it."""
    sealed, indexed = figures[_SEALED], figures["key_segments_indexed"]
    unknown, held = figures["key_segments_unknown"], size(figures["key_index_bytes"])
    if not sealed:
        return f"{held}; no segment is full yet"
    if indexed == sealed:
        return f"{held}; all {sealed:,} full segments are indexed"
    text = f"{held}; {indexed:,} of {sealed:,} full segments are indexed"
    if unknown:
        text += f", {unknown:,} have not been looked at since the server's start"
    return f"{text}; find scans the others"


def _filter_rows(figures: dict[str, int]) -> Iterator[tuple[str, str]]:
    why = why_nothing_is_saved(figures)
    if why:
        yield "filters save nothing", why
    if not figures.get("chunks"):
        return
    chunks, values = figures["chunks"], figures["values"]
    yield "filters", f"of {chunks:,} chunks, with {values:,} different values"
    for key, count in figures.items():
        if key.startswith(_VALUES_OF):
            yield f"values of {key.removeprefix(_VALUES_OF)}", f"{count:,}"
    yield "filter bits set", percent(figures["fill_ppm"] / _MILLION)
    rates = f"{percent(figures['predicted_ppm'] / _MILLION)} predicted"
    if "observed_ppm" in figures:
        rates += f", {percent(figures['observed_ppm'] / _MILLION)} observed"
    yield "false positives", rates


@stream.command()
@click.argument("name")
@click.option(
    "--before",
    required=True,
    metavar="OFFSET|TIME",
    help="The first message to keep: its offset, or a time as in 2026-11-20T10:00:00Z. At most "
    "the offset behind the last message, which removes all.",
)
@uri_option
def truncate(name: str, uri: str, before: str) -> None:
    """Remove the oldest messages of the stream NAME, for good.

    The others keep their offsets. Chunks are kept as a whole, so a few messages before the given
    place may stay. Consumers that have not come so far go on where the stream begins then.

    \b
    Examples:
      streamd stream truncate flights --before 100000
      streamd stream truncate flights --before 2026-11-01T00:00:00Z
    """
    offset = whole_number(before)
    time = moment(before) if offset is None else None
    if time is None and offset is None:
        raise Misused(
            f"--before is {before!r}, expected an offset, or a time as in 2026-11-20T10:00:00Z"
        )

    async def work(client: "Client") -> tuple[int | None, int]:
        if time is not None:
            return None, await client.truncate(name, before_time_ms=whole_ms(time))
        began = None if offset is None else await _begins(client, name, offset)
        return began, await client.truncate(name, before=offset)

    began, first = run_client(uri, work)
    note(f"{shown(name)} begins at offset {first:,}")
    if offset is not None and first == began and first < offset:
        note(
            f"nothing was removed: offset {offset:,} is in the first chunk, or there is no room to "
            "copy what stays of its segment; a later offset needs less room"
        )


async def _begins(client: "Client", name: str, offset: int) -> int | None:
    """Where the stream begins, None without the right to know.

    Raises:
        Failed: an offset behind the end, a slip or a time in ms, would remove everything.
    """
    from clients import AccessRefused  # noqa: PLC0415 - not needed for --help

    try:
        figures = await client.stats(name)
    except AccessRefused:  # the right to configure is enough to truncate
        return None
    end = figures["committed_offset"] + 1
    if not end:  # there is nothing to lose
        return None
    if offset > end:
        raise Failed(
            f"--before is {offset}, and {name} ends before offset {end}; that offset removes all "
            "messages, and a time is given as in 2026-11-20T10:00:00Z"
        )
    return figures["first_chunk_id"]


@stream.command()
@click.argument("name")
@uri_option
def delete(name: str, uri: str) -> None:
    """Delete the stream NAME with everything in it.

    \b
    Example:
      streamd stream delete flights
    """

    async def work(client: "Client") -> None:
        await client.delete(name)

    run_client(uri, work)
    note(f"deleted {shown(name)}")


def _plain(info: "StreamInfo") -> dict[str, object]:
    return {
        "name": info.name,
        "available": bool(info.figures),
        "arguments": info.arguments,
        **info.figures,
    }


def _time(timestamp_ms: int) -> str:
    if not timestamp_ms:
        return "-"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
