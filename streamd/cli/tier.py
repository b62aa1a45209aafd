"""`streamd tier`: what is in the object store, whether it is right, and what nobody needs there."""

from typing import TYPE_CHECKING, TypeAlias

import click

from segments.words import duration, plural, size
from streamd.cli.common import Commands, WholeNumber, json_option, run_client, uri_option
from streamd.cli.terminal import Failed, note, show_table, shown, write_json
from streamd.operations.tier_reports import (
    MOST_SECONDS,
    UPLOAD_SECONDS,
    Collected,
    Fault,
    Kind,
    Orphan,
    StreamTier,
    TierState,
    TierStatus,
    Uploaded,
    UploadedStream,
    Verification,
    from_row,
    plain,
)

if TYPE_CHECKING:
    from clients import Client

Rows: TypeAlias = list[dict[str, str]]
# While the server works for long it notices by heartbeats alone that nobody waits any more.
_HEARTBEAT_SECONDS = 5


@click.group(cls=Commands)
def tier() -> None:
    """Look at the object store that full segments are uploaded to.

    The server asks the store: no credentials are needed here.
    """


def _run(uri: str, operation: str, **arguments: str) -> tuple[dict[str, str], Rows]:
    """What the server answers: its report, and the items of it."""

    async def work(client: "Client") -> Rows:
        return await client.tier_report(operation, **arguments)

    rows = run_client(uri, work, heartbeat=_HEARTBEAT_SECONDS)
    if not rows:
        raise Failed(f"the server has answered {operation} without a report")
    return rows[0], rows[1:]


@tier.command()
@json_option
@uri_option
def status(uri: str, *, as_json: bool) -> None:
    """Show how the tier is doing, and what it has of each stream.

    \b
    Example:
      streamd tier status
    """
    row, rows = _run(uri, "tier.status")
    found = from_row(TierStatus, row)
    streams = [from_row(StreamTier, row) for row in rows]
    if as_json:
        write_json({**plain(found), "streams": [plain(one) for one in streams]})
        return
    if found.state == TierState.OFF:
        note("the server has no tier; its setting tier names one, as s3://BUCKET/PREFIX")
        return
    show_table((), _status_rows(found))
    if streams:
        click.echo()
        show_table(
            ("vhost", "stream", "local", "in the tier", "waiting", "oldest", "trouble"),
            [_stream_row(one) for one in streams],
            "llrrrrl",
        )


def _status_rows(found: TierStatus) -> list[tuple[str, str]]:
    kinds = [
        plural(found.requests.get(kind, 0), kind) for kind in Kind if found.requests.get(kind, 0)
    ]
    moved = found.transferred
    return [
        ("tier", found.url),
        ("state", f"{found.state}: {found.sentence}" if found.sentence else found.state),
        *_read_only_rows(found.looked_seconds),
        ("writer", f"{found.writer}, epoch {found.epoch:,}"),
        ("streams", f"{found.num_streams:,}"),
        ("local", size(found.bytes_local)),
        ("in the tier", size(found.bytes_remote)),
        ("waiting", _waiting(found.bytes_waiting, found.oldest_waiting_seconds)),
        *_upload_rows(found.upload_rate, found.upload_seconds),
        *_confirm_rows(found),
        ("cache", size(found.cache_bytes)),
        ("requests", f"{', '.join(kinds) or 'none'}; {plural(found.errors, 'error')}"),
        (
            "moved",
            f"{size(moved.get(Kind.PUT, 0))} uploaded, {size(moved.get(Kind.GET, 0))} fetched",
        ),
    ]


def _confirm_rows(found: TierStatus) -> list[tuple[str, str]]:
    """What is confirmed by the tier; nothing where nothing is."""
    seconds, slowest = found.slot_seconds, found.slowest_slot_seconds
    rows = [("trouble", found.confirm_sentence)] if found.confirm_sentence else []
    if seconds is not None and slowest is not None:
        took = f"half of the last within {duration(seconds)}, all within {duration(slowest)}"
        rows.append(("slots", f"{found.slots_stored:,} stored; {took}"))
    if found.slots_kept:
        kept = f"{plural(found.slots_kept, 'slot')}, {size(found.slot_bytes_kept)}"
        rows.append(("log", f"{kept}, which a start would read"))
    return rows


def _upload_rows(rate: float | None, seconds: float | None) -> list[tuple[str, str]]:
    if rate is None:
        return []
    left = "" if seconds is None else f"; what waits takes {seconds:,.0f} s at that rate"
    return [("upload", f"{size(round(rate))}/s{left}")]


def _read_only_rows(looked: float | None) -> list[tuple[str, str]]:
    return [] if looked is None else [("read-only", f"as it was {looked:,.0f} s ago")]


def _stream_row(one: StreamTier) -> tuple[str, ...]:
    age = one.oldest_waiting_seconds
    return (
        one.vhost,
        one.name,
        size(one.bytes_local),
        size(one.bytes_remote),
        size(one.bytes_waiting),
        "" if age is None else f"{age:,.0f} s",
        one.sentence,
    )


def _waiting(number: int, age: float | None) -> str:
    return size(number) if age is None else f"{size(number)}, the oldest for {age:,.0f} s"


def stream_text(one: StreamTier) -> str:
    """What is where of a stream, in one line."""
    there = f"{plural(one.segments_remote, 'segment')}, {size(one.bytes_remote)}, in the tier"
    here = f"{plural(one.segments_local, 'segment')}, {size(one.bytes_local)}, local"
    text = f"{there}; {here}"
    if one.segments_waiting:
        age = _waiting(one.bytes_waiting, one.oldest_waiting_seconds)
        text += f"; {plural(one.segments_waiting, 'full segment')} not uploaded yet, {age}"
    if one.messages_unconfirmed:
        text += f"; {plural(one.messages_unconfirmed, 'message')} wait for the tier's confirm"
    if one.looked_seconds is not None:
        text += f"; read-only, as it was {one.looked_seconds:,.0f} s ago"
    return f"{text}; {one.sentence}" if one.sentence else text


@tier.command()
@click.argument("stream")
@json_option
@uri_option
def verify(stream: str, uri: str, *, as_json: bool) -> None:
    """Check all objects of STREAM in the store.

    The server reads them from the store, which takes its time: what the manifest names, and slots
    of the write-ahead log that a start would read. Nothing is changed. The exit code is 1 when
    something is wrong with one of them.

    \b
    Example:
      streamd tier verify orders
    """
    row, rows = _run(uri, "tier.verify", stream=stream)
    faults = tuple(from_row(Fault, row) for row in rows)
    found = from_row(Verification, row, faults=faults)
    read = f"{plural(found.num_objects, 'object')}, {size(found.num_bytes)}"
    if as_json:
        write_json(plain(found))
    if not found.num_faults:
        note(f"{shown(stream)}: {read}, all as they should be")
        return
    if not as_json:
        show_table(("object", "fault"), [(fault.key, fault.sentence) for fault in faults])
    more = f"; the first {len(faults):,} are shown" if found.num_faults > len(faults) else ""
    number = plural(found.num_faults, "fault")
    raise Failed(f"{shown(stream)}: {number} in {read}{more}")


@tier.command()
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
@uri_option
def gc(uri: str, *, dry_run: bool, as_json: bool) -> None:
    """Remove objects from the store that nothing refers to any more.

    They are left by uploads that were cut off, by deletions, and by write-ahead logs of earlier
    starts that were shortened while the store did not answer. The server removes them by itself
    where it knows of them. Fences of write-ahead logs stay for good.

    \b
    Example:
      streamd tier gc --dry-run
    """
    row, rows = _run(uri, "tier.gc", dry_run=str(dry_run).lower())
    orphans = tuple(from_row(Orphan, row) for row in rows)
    found = from_row(Collected, row, orphans=orphans)
    if as_json:
        write_json(plain(found))
    elif orphans:
        show_table(("object", "bytes"), [(one.key, f"{one.size:,}") for one in orphans], "lr")
    what = f"{plural(found.num_orphans, 'object')}, {size(found.num_bytes)}"
    shown_only = f"; the first {len(orphans):,} are shown" * (found.num_orphans > len(orphans))
    note(f"{'removed' if found.is_removed else 'would remove'} {what}{shown_only}")


@tier.command()
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option(
    "--timeout",
    "seconds",
    type=WholeNumber(1, MOST_SECONDS),
    default=UPLOAD_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Wait at most this long.",
)
@json_option
@uri_option
def upload(streams: tuple[str, ...], seconds: int, uri: str, *, as_json: bool) -> None:
    """Upload what is not in the tier yet, and wait for that.

    All streams of all virtual hosts, or each STREAM: segments that are not full are sealed for it.
    Afterwards the tier has all messages that were confirmed before, and the catalog. Publishing
    goes on meanwhile. The exit code is 1 when the time is over, or a stream cannot be uploaded;
    what was uploaded stays in the tier, and the command can be given again.

    \b
    Examples:
      streamd tier upload
      streamd tier upload orders payments --timeout 60
    """
    names = {f"stream.{number}": name for number, name in enumerate(streams)}
    row, rows = _run(uri, "tier.upload", seconds=str(seconds), **names)
    found = from_row(Uploaded, row, streams=tuple(from_row(UploadedStream, one) for one in rows))
    if as_json:
        write_json(plain(found))
        return
    if found.streams:
        show_table(
            ("vhost", "stream", "uploaded", "next offset"),
            [
                (one.vhost, one.name, size(one.num_bytes), f"{one.next_offset:,}")
                for one in found.streams
            ],
            "llrr",
        )
    outside = (
        f"; {plural(found.num_outside, 'stream')} not to be in it" if found.num_outside else ""
    )
    note(
        f"{plural(found.num_streams, 'stream')} and the catalog are in the tier, "
        f"{size(found.num_bytes)} uploaded{outside}"
    )
