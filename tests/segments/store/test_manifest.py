"""A manifest says what was written into it, or is refused."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments.checksum import crc32
from segments.codec import Damage
from segments.errors import FormatError, VersionError
from segments.store.cluster import (
    CatalogCopy,
    Cluster,
    EarlierRoot,
    Root,
    WalMark,
    decode_root,
    encode_root,
)
from segments.store.manifest import (
    Manifest,
    StoredFile,
    StoredSegment,
    StoredTracking,
    changed_segments,
    decode_manifest,
    encode_manifest,
)
from segments.store.metadata_log import (
    Entry,
    Row,
    SnapshotHead,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
)
from segments.store.object_names import StreamKey, creation_in, parse_object
from tests.support.tiers import earlier_root

_numbers = st.integers(0, (1 << 63) - 1)
_files = st.builds(StoredFile, _numbers, st.integers(0, (1 << 32) - 1))
_names = st.text(min_size=1, max_size=400)
_uids = st.integers(0, (1 << 64) - 1).map(lambda number: f"{number:016x}")


@st.composite
def _segments(draw: st.DrawFn) -> tuple[StoredSegment, ...]:
    bounds = sorted(draw(st.lists(_numbers, max_size=6, unique=True)))
    found = []
    for base, following in zip(bounds[::2], bounds[1::2], strict=False):
        files = {".segment": draw(_files), ".index": draw(_files)}
        if draw(st.booleans()):
            files[".filter"] = draw(_files)
        damage = tuple(draw(st.lists(st.builds(Damage, _numbers, _numbers, _numbers, _numbers))))
        times = draw(st.one_of(st.none(), _numbers)), draw(st.one_of(st.none(), _numbers))
        last = draw(st.one_of(st.none(), _numbers))
        found.append(StoredSegment(base, following, 3, *times, last, 4, draw(_uids), files, damage))
    return tuple(found)


@st.composite
def _manifests(draw: st.DrawFn) -> Manifest:
    segments = draw(_segments())
    tracking = draw(
        st.one_of(st.none(), st.builds(StoredTracking, _numbers, _numbers, _uids, _files))
    )
    return Manifest(
        stream=StreamKey(draw(_names), draw(_names), "0123456789abcdef"),
        revision=draw(_numbers),
        epoch=draw(_numbers),
        writer=draw(_uids),
        next_offset=segments[-1].next_offset if segments else draw(_numbers),
        segments=segments,
        arguments=draw(st.dictionaries(_names, st.one_of(st.integers(), st.text(), st.booleans()))),
        tracking=tracking,
        is_deleted=draw(st.booleans()),
    )


def _small() -> Manifest:
    files = {".segment": StoredFile(10, 1), ".index": StoredFile(8, 2)}
    segments = tuple(
        StoredSegment(at, at + 5, 1, 7, 7, at, 1, f"{at:016x}", files) for at in (0, 5)
    )
    key = StreamKey("/", "orders", "0123456789abcdef")
    return Manifest(stream=key, revision=3, epoch=2, writer="w", next_offset=10, segments=segments)


def test_no_flipped_or_missing_byte_is_taken_for_the_truth() -> None:
    content = encode_manifest(_small())
    for at in range(len(content)):
        for bit in (1, 32, 128):
            damaged = bytearray(content)
            damaged[at] ^= bit
            try:
                found = decode_manifest(bytes(damaged))
            except FormatError:
                continue
            assert found == _small()  # white space at the end, say
    for size in range(len(content) - 1):  # the last line end may be missing
        with pytest.raises(FormatError):
            decode_manifest(content[:size])


# As the first version of the format has it.
STORED = (
    b'{"format":"streamd-tier-manifest","version":1,"virtual_host":"/","stream":"z\\u00fcrich",'
    b'"creation":"0123456789abcdef","revision":3,"epoch":2,"writer":"w","next_offset":10,'
    b'"goes_on":7,"arguments":{"max-age":"7D","stream-filter-error-rate":0.01},'
    b'"settings":{"stream-tier":false},"tracking":[10,2,"1111111111111111",3,4],'
    b'"marked":{"00ff":5},"deleted":true}\n'
    b'{"base":0,"next":5,"chunks":1,"first_ms":null,"last_ms":null,"last_chunk":null,'
    b'"epoch":1,"uid":"0000000000000001","files":{".segment":[10,1],".index":[8,2]}}\n'
    b'{"base":5,"next":9,"chunks":2,"first_ms":-1,"last_ms":7,"last_chunk":6,"epoch":1,'
    b'"uid":"ffffffffffffffff","files":{".segment":[10,1],".index":[8,4294967295],'
    b'".keys":[9223372036854775807,0]},"damage":[[8,9,5,6]]}\n'
    b'{"crc32":3428368081}\n'
)


def _stored() -> Manifest:
    files = {".segment": StoredFile(10, 1), ".index": StoredFile(8, 2)}
    others = files | {".index": StoredFile(8, (1 << 32) - 1), ".keys": StoredFile((1 << 63) - 1, 0)}
    return Manifest(
        stream=StreamKey("/", "zürich", "0123456789abcdef"),
        revision=3,
        epoch=2,
        writer="w",
        next_offset=10,
        goes_on=7,
        segments=(
            StoredSegment(0, 5, 1, None, None, None, 1, f"{1:016x}", files),
            StoredSegment(5, 9, 2, -1, 7, 6, 1, "f" * 16, others, (Damage(8, 9, 5, 6),)),
        ),
        arguments={"max-age": "7D", "stream-filter-error-rate": 0.01},
        settings={"stream-tier": False},
        tracking=StoredTracking(10, 2, "1" * 16, StoredFile(3, 4)),
        marked={"00ff": 5},
        is_deleted=True,
    )


def test_what_is_wrong_is_named() -> None:
    lines = [json.loads(line) for line in encode_manifest(_small()).splitlines()[:-1]]
    for path, odd, says in (
        ((0, "revision"), -1, "revision: expected a whole number of at least 0"),
        ((1, "files", ".index"), [1], "files[...]: expected a list of length 2"),
        ((1, "uid"), "../../../../..", "uid: expected a text matching"),
        ((1, "next"), 6, "a segment begins at 5, expected 6 or later"),
    ):
        with pytest.raises(FormatError, match=f"^{re.escape(says)}"):
            decode_manifest(_with_crc(_changed(lines, path, odd)))


def test_bytes_that_were_stored() -> None:
    """Every later version reads these, and writes them."""
    assert decode_manifest(STORED) == _stored()
    assert encode_manifest(_stored()) == STORED


def test_a_later_version_is_named() -> None:
    content = encode_manifest(_small()).replace(b'"version":1', b'"version":2')
    with pytest.raises(VersionError, match="its version is 2, expected 1"):
        decode_manifest(content)


def test_that_of_another_stream_is_refused() -> None:
    content = encode_manifest(_small())
    with pytest.raises(FormatError, match=r"orders.*expected.*others"):
        decode_manifest(content, StreamKey("/", "others", "0123456789abcdef"))


@given(_names, _names, _names, _names)
def test_no_two_streams_share_a_folder(host: str, name: str, host2: str, name2: str) -> None:
    one, other = StreamKey(host, name, "c"), StreamKey(host2, name2, "c")
    assert (one.folder == other.folder) == (one == other)


@given(_names, _names)
def test_keys_are_plain_and_short(host: str, name: str) -> None:
    try:
        key = StreamKey(host, name, "0123456789abcdef").object(1 << 62, 99, "f" * 16, ".segment")
    except UnicodeEncodeError:
        return  # no name of a stream
    assert key.isascii()
    assert len(key) < 1_000
    parts = key.split("/")
    assert len(parts) == 4
    assert all(part.strip(".") for part in parts)
    assert parts[1] not in ("cluster", "catalog")
    assert creation_in("/".join(parts[:3])) == "0123456789abcdef"
    assert parse_object(parts[3]) == (1 << 62, 99, "f" * 16, ".segment")


_ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    "x",
    "../../x",
    "",
    [],
    {},
    [[]],
    1 << 70,
    "\ud800",
    "a" * 9_999,
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[name], (*path, name))


def _changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    copy = json.loads(json.dumps(value))
    at = copy
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = odd
    return copy


def _with_crc(lines: list[Any]) -> bytes:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return body + b'{"crc32":%d}\n' % crc32(body)


def test_fields_of_the_wrong_type_are_one_sentence() -> None:
    """Whatever is accepted can be used: its keys be told, and it be written again."""
    tracking = StoredTracking(10, 2, f"{1:016x}", StoredFile(3, 4))
    manifest = replace(_small(), tracking=tracking, arguments={"max-age": "7D"})
    damaged = replace(manifest.segments[1], damage=(Damage(8, 9, 5, 6),))
    manifest = replace(manifest, segments=(manifest.segments[0], damaged))
    lines = [json.loads(line) for line in encode_manifest(manifest).splitlines()[:-1]]
    sentences = []
    for path in _places(lines):
        for odd in _ODD:
            try:
                found = decode_manifest(_with_crc(_changed(lines, path, odd)))
            except FormatError as error:
                sentences.append(str(error))
                continue
            assert decode_manifest(encode_manifest(found)) == found
            assert found.first_offset >= 0 <= found.size
            assert {key.count("/") for key in Manifest.keys(found)} == {3}, path
            hash(found.stream.folder)
    assert sentences
    assert all(len(one) < 200 and one.isprintable() for one in sentences)


def _encoded_again(found: object) -> bytes:
    assert isinstance(found, EarlierRoot)
    return earlier_root(found.cluster, found.catalog)


def _encoded_head(found: SnapshotHead) -> bytes:
    return encode_snapshot(found.cluster, found.change, b"")


def _decoded_head(content: bytes) -> SnapshotHead:
    return decode_snapshot(content)[0]


@pytest.mark.parametrize("decode", [decode_manifest, decode_root])
def test_json_that_is_deep_or_no_names(decode: Callable[[bytes], object]) -> None:
    for line in (b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"7", b"null", b'"a"', b"\xff"):
        with pytest.raises(FormatError):
            decode(line + b'\n{"crc32":%d}\n' % crc32(line + b"\n"))


_CLUSTER = Cluster(
    revision=1, epoch=2, writer="w", start="s", tier="t", since=1, wals=(WalMark(1, 2),)
)
_ROOT = Root(tier="t", revision=1, uid=f"{5:016x}", size=10, crc=11)
_ENTRY = Entry(
    tier="t",
    revision=2,
    epoch=2,
    writer="w",
    start="s",
    since=1,
    wals=(WalMark(1, 2),),
    change=3,
    schema=9,
    rows=(
        Row("users", {"name": "u"}, {"tags": "[]", "n": None}),
        Row("users", {"name": "v"}, None),
    ),
)


def _decoded_entry(content: bytes) -> Entry:
    return decode_entry(_ENTRY.key, content)


@pytest.mark.parametrize(
    ("decode", "encode", "content"),
    [
        (decode_root, encode_root, encode_root(_ROOT)),
        (decode_root, _encoded_again, earlier_root(_CLUSTER, CatalogCopy(3, 2, "0" * 16, 10, 11))),
        (_decoded_entry, encode_entry, encode_entry(_ENTRY)),
        (_decoded_head, _encoded_head, encode_snapshot(_CLUSTER, 3, b"")),
    ],
)
def test_fields_of_the_log_and_its_root(
    decode: Callable[[bytes], object], encode: Callable[[Any], bytes], content: bytes
) -> None:
    """Each is what it should be, or is refused: what is read is written as it was."""
    assert encode(decode(content)) == content
    line = json.loads(content.splitlines()[0])
    for path in _places(line):
        for odd in _ODD:
            with suppress(FormatError):
                found = decode(_with_crc([_changed(line, path, odd)]))
                assert decode(encode(found)) == found
    for at in range(len(content) - 2):
        for part in (content[:at], content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]):
            with pytest.raises(FormatError):
                decode(part)


def test_no_name_is_taken_for_the_hash_of_another() -> None:
    """Nobody can put a stream in the place of one with a long name."""
    long = StreamKey("/", "n" * 250, "1")
    escaped = long.folder.rpartition("/")[2].rpartition("~")[0]
    assert StreamKey("/", escaped, "1").folder != long.folder


@given(_manifests(), st.data())
def test_keys_that_are_named_no_more(manifest: Manifest, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=6, max_size=6))
    later = replace(
        manifest,
        segments=tuple(s for s, stays in zip(manifest.segments, kept, strict=False) if stays),
        tracking=data.draw(st.sampled_from([None, manifest.tracking])),
    )
    assert manifest.keys_without(later) == manifest.keys() - later.keys()


@st.composite
def _two_manifests(draw: st.DrawFn) -> tuple[Manifest, Manifest]:
    """Of segments of one stream; what is in both is the same object, or one that was read anew."""
    segments = draw(_segments())
    before, after = (tuple(one for one in segments if draw(st.integers(0, 3))) for _ in range(2))
    again = draw(st.sets(st.sampled_from(range(len(after))))) if after else set()
    changed = [replace(one, epoch=draw(st.integers(4, 5))) for one in after]
    after = tuple(changed[n] if n in again else one for n, one in enumerate(after))
    key = StreamKey("/", "s", "0123456789abcdef")
    end = segments[-1].next_offset if segments else 0
    first, second = (
        Manifest(stream=key, revision=1, epoch=1, writer="w", next_offset=end, segments=some)
        for some in (before, after)
    )
    return first, second


@given(_two_manifests())
def test_what_has_changed_between_two(two: tuple[Manifest, Manifest]) -> None:
    before, after = two
    gone, new = changed_segments(before.segments, after.segments)
    assert gone == tuple(one for one in before.segments if one not in after.segments)
    assert new == tuple(one for one in after.segments if one not in before.segments)


@given(_two_manifests())
def test_reading_one_of_which_most_is_known(two: tuple[Manifest, Manifest]) -> None:
    """What is known is taken over, and makes no difference."""
    before, after = two
    content = encode_manifest(after)
    found = decode_manifest(content, known=before.segments)
    assert found == decode_manifest(content) == after
    for one in found.segments:
        assert (one in before.segments) == any(one is known for known in before.segments)
