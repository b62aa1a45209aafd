"""A manifest says what was written into it, or is refused."""

import json

import pytest
from hypothesis import given, strategies as st

from segments.codec import Damage
from segments.errors import FormatError, VersionError
from segments.tier.keys import StreamKey, creation_in, parse_object
from segments.tier.manifest import (
    Manifest,
    StoredFile,
    StoredSegment,
    StoredTracking,
    decode_manifest,
    encode_manifest,
)

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


@given(_manifests())
def test_round_trip(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest), manifest.stream) == manifest


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


def test_a_later_version_is_named() -> None:
    content = encode_manifest(_small()).replace(b'"version":1', b'"version":2')
    with pytest.raises(VersionError, match="its version is 2, expected 1"):
        decode_manifest(content)


def test_that_of_another_stream_is_refused() -> None:
    content = encode_manifest(_small())
    with pytest.raises(FormatError, match=r"orders.*expected.*others"):
        decode_manifest(content, StreamKey("/", "others", "0123456789abcdef"))


def test_segments_that_overlap_are_refused() -> None:
    lines = encode_manifest(_small()).splitlines(keepends=True)
    from segments.checksum import crc32  # noqa: PLC0415 - as the manifest's own

    line = json.loads(lines[1])
    line["next"] = 6
    body = b"".join([lines[0], json.dumps(line, separators=(",", ":")).encode() + b"\n", lines[2]])
    with pytest.raises(FormatError, match="begins at 5, expected 6 or later"):
        decode_manifest(body + b'{"crc32":%d}\n' % crc32(body))


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
