"""What a store has of a stream: one small object that is replaced by compare-and-set.

Lines of JSON: a head, then a line for each segment, then the CRC-32 of all lines before. The head
has a revision that grows with each change, as the etag of a store may come back with an earlier
content; the epoch of the server that wrote it, which only grows; and who that server is.

A segment counts as stored when a manifest that names it is. Nothing of a stream is to be found
otherwise: objects that no manifest names are left by a crash, and are removed some time.
"""

import json
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter, is_
from typing import Any, NamedTuple

import msgspec

from segments.checksum import crc32
from segments.codec import Damage
from segments.errors import FormatError
from segments.store import fields
from segments.store.object_names import StreamKey

MANIFEST_VERSION = 1
_FORMAT = "streamd-tier-manifest"


class StoredFile(NamedTuple):
    """Size in bytes and CRC-32 of a file that is stored as an object."""

    size: fields.Number
    crc: fields.Number


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A sealed segment in the store.

    Attributes:
        base_offset, next_offset: of its first message, and behind its last.
        num_chunks: records of its index.
        first_timestamp_ms, last_timestamp_ms, last_chunk_id: of its chunks; None without any.
        files: what is stored, by suffix; `.segment` and `.index` always are.
        damage: ranges of it that cannot be read.
    """

    base_offset: int
    next_offset: int
    num_chunks: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    last_chunk_id: int | None
    epoch: int
    uid: str
    files: Mapping[str, StoredFile]
    damage: tuple[Damage, ...] = ()
    _line: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """The size of its segment file, in bytes."""
        return self.files[".segment"].size

    @property
    def line(self) -> bytes:
        """Its line of a manifest; made once, as most segments are in thousands of manifests."""
        if not self._line:
            line = _Line(
                self.base_offset,
                self.next_offset,
                self.num_chunks,
                self.first_timestamp_ms,
                self.last_timestamp_ms,
                self.last_chunk_id,
                self.epoch,
                self.uid,
                dict(self.files),
                self.damage,
            )
            self.comes_from(msgspec.json.encode(line) + b"\n")
        return self._line

    def comes_from(self, line: bytes) -> None:
        """Keep the line that it was decoded from."""
        object.__setattr__(self, "_line", line)

    @property
    def stored_bytes(self) -> int:
        """The bytes of all its objects."""
        return sum(file.size for file in self.files.values())

    def key(self, stream: StreamKey, suffix: str) -> str:
        """Key of one of its objects."""
        return stream.object(self.base_offset, self.epoch, self.uid, suffix)


class StoredTracking(NamedTuple):
    """What is known of publishers and consumers as of `next_offset`, in an object of its own."""

    next_offset: int
    epoch: int
    uid: str
    file: StoredFile


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a store has of a stream.

    Attributes:
        revision: grows with each change, from 1.
        next_offset: behind the last stored message.
        goes_on: behind all that machines which are lost may have given out, after a restore: what
            comes after the segments of then begins there, or later; 0 before the first restore.
        segments: oldest first. Offsets between two of them were lost.
        arguments: the stream was declared with, and settings that were changed, as in the catalog.
        tracking: None while there is nothing to know.
        marked: since which offset its chunks have the token of a standing selector, if they need
            it, by token in hexadecimal digits.
        is_deleted: the stream is no more, and its objects are about to go.
    """

    stream: StreamKey
    revision: int
    epoch: int
    writer: str
    next_offset: int = 0
    goes_on: int = 0
    segments: tuple[StoredSegment, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tracking: StoredTracking | None = None
    marked: Mapping[str, int] = field(default_factory=dict)
    is_deleted: bool = False

    @property
    def first_offset(self) -> int:
        """The first offset that is stored; `next_offset` where none is."""
        return self.segments[0].base_offset if self.segments else self.next_offset

    @cached_property
    def size(self) -> int:
        """Bytes of all segment files."""
        return sum([segment.files[".segment"].size for segment in self.segments])

    def keys(self) -> set[str]:
        """Keys of all objects that it names."""
        found = {s.key(self.stream, suffix) for s in self.segments for suffix in s.files}
        if self.tracking is not None:
            found.add(self.tracking_key)
        return found

    def keys_without(self, later: "Manifest") -> set[str]:
        """Keys that a later one does not name any more; soon, as most segments are in both."""
        gone, new = changed_segments(self.segments, later.segments)
        return replace(self, segments=gone).keys() - replace(later, segments=new).keys()

    @property
    def tracking_key(self) -> str:
        """Key of the tracking, of which there is some."""
        assert self.tracking is not None  # noqa: S101 - see above
        at = self.tracking
        return self.stream.object(at.next_offset, at.epoch, at.uid, ".tracking")

    def check(self) -> None:
        """Raise FormatError where segments are not in order; there may be offsets between them."""
        for segment in self.segments:
            if segment.next_offset < segment.base_offset:
                raise FormatError(f"segment {segment.base_offset} ends before it begins")
        for before, segment in pairwise(self.segments):
            if before.base_offset == segment.base_offset:
                raise FormatError(f"two segments begin at {segment.base_offset}")
            if before.next_offset > segment.base_offset:
                found, expected = segment.base_offset, before.next_offset
                raise FormatError(f"a segment begins at {found}, expected {expected} or later")
        if self.segments and self.segments[-1].next_offset > self.next_offset:
            found = self.segments[-1].next_offset
            raise FormatError(f"the last segment ends at {found}, behind {self.next_offset}")


def changed_segments(
    before: Sequence[StoredSegment], after: Sequence[StoredSegment]
) -> tuple[tuple[StoredSegment, ...], tuple[StoredSegment, ...]]:
    """Segments that only the first, and that only the second of two manifests lists.

    Between two manifests of a stream the oldest and the newest segments change, and others hardly
    ever. Those are mostly the same objects in both, which is seen soon.

    Args:
        before: of the one, in order.
        after: of the other, in order.
    """
    before, after = tuple(before), tuple(after)
    if not (before and after):
        return before, after
    old = number_before(before, after[0].base_offset)
    new = number_before(after, before[0].base_offset)
    both = min(len(before) - old, len(after) - new)
    if all(map(is_, before[old : old + both], after[new : new + both])):
        return before[:old] + before[old + both :], after[:new] + after[new + both :]
    here, there = ({one.line for one in some} for some in (before, after))
    return (
        tuple(one for one in before if one.line not in there),
        tuple(one for one in after if one.line not in here),
    )


def number_before(segments: Sequence[StoredSegment], offset: int) -> int:
    """How many of some segments, in order, begin before an offset."""
    return bisect_left(segments, offset, key=attrgetter("base_offset"))


class _Tracking(NamedTuple):
    """See StoredTracking."""

    next_offset: fields.Number
    epoch: fields.Number
    uid: fields.Uid
    size: fields.Number
    crc: fields.Number


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line, behind format and version; see Manifest."""

    virtual_host: fields.Text
    stream: fields.Text
    creation: fields.Creation
    revision: fields.Number
    epoch: fields.Number
    writer: fields.Text
    next_offset: fields.Number
    goes_on: fields.Number = 0
    arguments: fields.Plain
    settings: fields.Plain
    tracking: _Tracking | None
    marked: dict[fields.Text, fields.Number] = {}
    deleted: bool


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a segment; see StoredSegment."""

    base: fields.Number
    next: fields.Number
    chunks: fields.Number
    first_ms: fields.TimeMs | None
    last_ms: fields.TimeMs | None
    last_chunk: fields.Number | None
    epoch: fields.Number
    uid: fields.Uid
    files: dict[fields.Suffix, StoredFile]
    damage: tuple[tuple[fields.Number, fields.Number, fields.Number, fields.Number], ...] = ()


_read_head, _read_segment = fields.reader(_Head), fields.reader(_Line)


def encode_manifest(manifest: Manifest) -> bytes:
    """The content of the object."""
    tracking = manifest.tracking
    head = {
        "format": _FORMAT,
        "version": MANIFEST_VERSION,
        **manifest.stream._asdict(),
        "revision": manifest.revision,
        "epoch": manifest.epoch,
        "writer": manifest.writer,
        "next_offset": manifest.next_offset,
        **({"goes_on": manifest.goes_on} if manifest.goes_on else {}),
        "arguments": dict(manifest.arguments),
        "settings": dict(manifest.settings),
        "tracking": None if tracking is None else [*tracking[:3], *tracking.file],
        "marked": dict(manifest.marked),
        "deleted": manifest.is_deleted,
    }
    body = b"".join([_encoded(head), *(segment.line for segment in manifest.segments)])
    return body + _encoded({"crc32": crc32(body)})


def _encoded(fields_of_line: Mapping[str, object]) -> bytes:
    return json.dumps(fields_of_line, separators=(",", ":")).encode() + b"\n"


def decode_manifest(
    content: bytes, stream: StreamKey | None = None, known: Iterable[StoredSegment] = ()
) -> Manifest:
    """What an object says.

    Args:
        content: of the object.
        stream: whose it should be; None for any.
        known: segments of an earlier one; those that are in this as well are taken over, which
            takes a hundredth of the time.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is no manifest, is damaged, or is of another stream.
    """
    *lines, last = content.splitlines(keepends=True) or [b""]
    body = b"".join(lines)
    fields.check(lines[0] if lines else b"", last, body, _FORMAT, MANIFEST_VERSION)
    by_line = {segment.line: segment for segment in known}
    segments = tuple([by_line.get(line) or _decoded_segment(line) for line in lines[1:]])
    manifest = _decoded(_read_head(lines[0]), segments)
    if stream is not None and manifest.stream != stream:
        raise FormatError(f"it is of {manifest.stream}, expected {stream}")
    manifest.check()
    return manifest


def _decoded(head: _Head, segments: tuple[StoredSegment, ...]) -> Manifest:
    at = head.tracking
    return Manifest(
        stream=StreamKey(head.virtual_host, head.stream, head.creation),
        revision=head.revision,
        epoch=head.epoch,
        writer=head.writer,
        next_offset=head.next_offset,
        goes_on=head.goes_on,
        segments=segments,
        arguments=head.arguments,
        settings=head.settings,
        tracking=at and StoredTracking(*at[:3], StoredFile(*at[3:])),
        marked=head.marked,
        is_deleted=head.deleted,
    )


def _decoded_segment(content: bytes) -> StoredSegment:
    line = _read_segment(content)
    if not {".segment", ".index"} <= line.files.keys():
        raise FormatError(f"segment {line.base} lacks a file")
    # Thousands of segments share what suffixes there are.
    files = {sys.intern(suffix): file for suffix, file in line.files.items()}
    segment = StoredSegment(
        line.base,
        line.next,
        line.chunks,
        line.first_ms,
        line.last_ms,
        line.last_chunk,
        line.epoch,
        line.uid,
        files,
        tuple(Damage(*numbers) for numbers in line.damage),
    )
    segment.comes_from(content)
    return segment
