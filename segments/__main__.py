"""`python -m segments dump|verify DIR`: look into a stream's files without a server."""

import datetime
import json
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from segments.codec import CHUNK_HEADER_SIZE, Block, ChunkHeader
from segments.disk import Disk, OsDisk, holder_of
from segments.errors import SegmentsError
from segments.filter_stats import FilterStats, read_blocks
from segments.format_constants import (
    CHUNK_MAGIC,
    FILTER_VALUE,
    MMH3_SCHEME,
    OFFSET,
    OSIRIS_SCHEME,
    SEQUENCE,
    USER,
)
from segments.property_keys import told
from segments.recovery import recovery
from segments.segment import SEGMENT_SUFFIX, Segment, parse_name, walk_headers
from segments.verify import verify as find_faults
from segments.view import View
from segments.words import plural

_SHOWN_VALUES = 6
_FILTER_VALUES = "filter_values"
_CHUNK_TYPES = {USER: "user", 1: "tracking_delta", 2: "tracking_snapshot"}
_SCHEMES = {OSIRIS_SCHEME: "osiris", MMH3_SCHEME: "mmh3"}
_KINDS = {SEQUENCE: "sequences", OFFSET: "offsets", FILTER_VALUE: _FILTER_VALUES}

_folder_argument = click.argument(
    "folder", metavar="DIR", type=click.Path(exists=True, file_okay=False)
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look into the files of a stream. Nothing is written, no server is needed.

    DIR is the folder of one stream, for example data/streams/%2F/flights. A server may be writing
    to it: what it had written by the start of the command is looked at. From another container, or
    not on Linux, that cannot be told, and what is just being written may look torn.
    """


@main.command()
@_folder_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object per chunk.")
def dump(folder: str, *, as_json: bool) -> None:
    """Print every chunk of a stream.

    Of each chunk: offsets, time, sizes, filter, and what its trailer records. For each segment:
    how full the filters are and how often they needlessly let a chunk pass, by their bits and as
    counted with the values of other chunks.

    \b
    Examples:
      python -m segments dump data/streams/%2F/flights
      python -m segments dump --json data/streams/%2F/flights | head -1
    """
    with _one_line_errors(), _seen(folder) as disk:
        for segment in recovery.examine(disk, folder, salvages=True).segments:
            stats = FilterStats()
            if not as_json:
                click.echo(_segment_line(segment))
            if segment.cold is not None:
                continue
            for position, header, filter_bytes, blocks in _chunks(segment):
                if as_json:
                    line = _json_line(segment, position, header, filter_bytes, blocks)
                else:
                    line = _chunk_line(position, header, filter_bytes, blocks)
                    stats.add(header, filter_bytes, blocks)
                click.echo(line)
            if stats.chunks:
                click.echo(f"  {_stats_line(stats)}")


@main.command()
@_folder_argument
def verify(folder: str) -> None:
    """Check every byte of a stream's files.

    That is checksums, order, indexes, filters and tracking. Exits 0 when all is whole, else 1
    after naming each damaged or missing file and the position. Segments that are only in an object
    store are left out: streamd tier verify looks at those.

    \b
    Example:
      python -m segments verify data/streams/%2F/flights
    """
    count = 0
    with _one_line_errors(), _seen(folder) as disk:
        for fault in find_faults(disk, folder):
            click.echo(str(fault))
            count += 1
        if count:
            raise click.exceptions.Exit(1)
        found = recovery.examine(disk, folder, salvages=True).segments
        segments = [segment for segment in found if segment.cold is None]
        chunks = sum(segment.num_chunks for segment in segments)
        size = sum(segment.size for segment in segments)
        click.echo(
            f"whole: {plural(len(segments), 'segment')}, {plural(chunks, 'chunk')}, {size:,} bytes"
            f"{_left_out(found)}"
        )


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except SegmentsError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _seen(folder: str) -> Iterator[Disk]:
    """A stream's folder as it is, or was just now if somebody writes to it."""
    _check_folder(folder)
    if holder_of(folder) is None:
        yield OsDisk()
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a view holds all files of the folder
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with View(OsDisk(), folder) as view:
        yield view


def _check_folder(folder: str) -> None:
    """Refuse a folder that is not a stream's, and say where streams are below it."""
    if any(parse_name(path.name) for path in Path(folder).iterdir()):
        return
    below = sorted({str(path.parent) for path in Path(folder).rglob(f"*{SEGMENT_SUFFIX}")})
    advice = f"; there are streams in {', '.join(below[:3])}" if below else ""
    raise click.ClickException(f"{folder} is not a stream's folder: it holds no segments{advice}")


def _chunks(segment: Segment) -> Iterator[tuple[int, ChunkHeader, bytes, list[Block]]]:
    file = segment.acquire()
    try:
        for position, header in walk_headers(segment, file):
            filter_bytes = file.read(header.filter_size, position + CHUNK_HEADER_SIZE)
            blocks = read_blocks(file, position, header) if header.chunk_type == USER else []
            yield position, header, filter_bytes, blocks
    finally:
        segment.release()


class _Recorded(NamedTuple):
    """What a trailer says, for people: by the words for it, and by further filter properties."""

    words: dict[str, dict[str, int]]
    properties: dict[str, dict[str, int]]


def _recorded(blocks: list[Block]) -> _Recorded:
    found: dict[str, dict[bytes, int]] = {}
    for block in blocks:
        if block.kind in _KINDS:
            found.setdefault(_KINDS[block.kind], {})[block.id] = block.value
    properties: dict[str, dict[bytes, int]] = {}
    if _FILTER_VALUES in found:
        found[_FILTER_VALUES], properties = told(found[_FILTER_VALUES])
    return _Recorded(
        {word: _shown(values) for word, values in found.items()},
        {name: _shown(values) for name, values in properties.items()},
    )


def _shown(values: dict[bytes, int]) -> dict[str, int]:
    return {name.decode("utf-8", "backslashreplace"): count for name, count in values.items()}


def _json_line(
    segment: Segment, position: int, header: ChunkHeader, filter_bytes: bytes, blocks: list[Block]
) -> str:
    recorded = _recorded(blocks)
    fields: dict[str, object] = {"magic": CHUNK_MAGIC, **header._asdict()}
    fields["chunk_type"] = _CHUNK_TYPES.get(header.chunk_type, str(header.chunk_type))
    fields["filter_scheme"] = _SCHEMES.get(header.filter_scheme, str(header.filter_scheme))
    fields |= {"filter": filter_bytes.hex(), **recorded.words}
    if recorded.properties:
        fields["filter_properties"] = recorded.properties
    return json.dumps({"segment": segment.path(), "position": position} | fields)


def _segment_line(segment: Segment) -> str:
    offsets = f"offsets {segment.base_offset:,} to {segment.next_offset - 1:,}"
    if segment.next_offset == segment.base_offset:
        offsets = f"empty, next offset {segment.next_offset:,}"
    chunks = plural(segment.num_chunks, "chunk")
    where = " in the object store" if segment.cold is not None else ""
    return f"{segment.path()}: {offsets}, {chunks}, {segment.size:,} bytes{where}"


def _left_out(segments: Sequence[Segment]) -> str:
    """What of a stream is not looked at, as it is not here."""
    cold = [segment for segment in segments if segment.cold is not None]
    if not cold:
        return ""
    offsets = f"offsets {cold[0].base_offset:,} to {cold[-1].next_offset - 1:,}"
    return f"; left out: {plural(len(cold), 'segment')} in the object store, {offsets}"


def _stats_line(stats: FilterStats) -> str:
    observed = stats.observed
    line = (
        f"filters of {plural(stats.chunks, 'chunk')}: {plural(stats.distinct, 'value')}, "
        f"{stats.fill:.1%} of the bits set, false positives {stats.predicted:.2%} predicted"
    )
    return line if observed is None else f"{line}, {observed:.2%} observed"


def _chunk_line(
    position: int, header: ChunkHeader, filter_bytes: bytes, blocks: list[Block]
) -> str:
    time = datetime.datetime.fromtimestamp(header.timestamp_ms / 1000, datetime.UTC)
    records = plural(header.num_records, "record")
    line = (
        f"  at {position:>11,}  chunk {header.chunk_id:>11,}  {records:>14}  "
        f"{time:%Y-%m-%d %H:%M:%S}.{header.timestamp_ms % 1000:03}Z  {header.data_size:>9,} bytes"
    )
    if header.filter_size:
        bits = int.from_bytes(filter_bytes, "big").bit_count()
        line += f"  filter {header.filter_size} B, {bits / header.filter_size / 8:.0%} set"
    recorded = _recorded(blocks)
    words = {kind.replace("_", " "): values for kind, values in recorded.words.items()}
    for word, values in (*words.items(), *recorded.properties.items()):
        shown = [f"{name or '(none)'} {count}" for name, count in values.items()]
        rest = f", … {len(shown)} in all" if len(shown) > _SHOWN_VALUES else ""
        line += f"  {word}: {', '.join(shown[:_SHOWN_VALUES])}{rest}"
    return line


if __name__ == "__main__":
    main(prog_name="python -m segments")
