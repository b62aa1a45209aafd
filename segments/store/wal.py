"""The write-ahead log in a store: chunks that are confirmed before their segments are stored.

    v1/~wal/<epoch>/<slot>                  never changed; slots are consecutive from 0

Each server that confirms through the store has one for its present epoch. A *slot* has what its
streams have got since the last one: chunks, as they are in segments, and offsets that consumers
have stored. It is created if absent, and counts when all slots before it are there, too.

A *fence* is a slot with nothing in it that another server, or the next start of the same one, has
created where the log ended. What is behind it counts for nobody, and whoever meets it in the place
of a slot of its own has been taken over. Fences are never deleted: a name that became free again
could be used by a server that has slept.

A slot is a line of JSON, a line with the CRC-32 of that, and the chunks of its sections one after
the other; the line has the CRC-32 of each section.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from segments.checksum import crc32
from segments.codec import ChunkHeader, decode_chunk_header
from segments.errors import FormatError
from segments.store import fields
from segments.store.object_names import WAL_FOLDER, StreamKey

WAL_VERSION = 1
MOST_SLOT = 96 << 20  # bytes: a chunk has 64 MiB at most, one that is larger comes alone
_FORMAT = "streamd-wal"
_MOST_REFERENCE = 510  # hexadecimal digits

_Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})+\Z", max_length=_MOST_REFERENCE)]


def slot_key(epoch: int, slot: int) -> str:
    """The key of a slot."""
    return f"{WAL_FOLDER}/{epoch}/{slot:020d}"


def slot_in(key: str) -> tuple[int, int] | None:
    """Epoch and slot of a key; None for any other key."""
    epoch, _, slot = key.removeprefix(f"{WAL_FOLDER}/").partition("/")
    is_one = epoch.isdecimal() and slot.isdecimal() and key == slot_key(int(epoch), int(slot))
    return (int(epoch), int(slot)) if is_one else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a slot has of one stream.

    Attributes:
        virtual_host, stream, creation: see StreamKey.
        after: offset behind the chunk before the first one here, wherever that is.
        next_offset: offset behind the last chunk; `after` where there is none.
        size, crc: of the chunks, in bytes, and their CRC-32.
        arguments, settings: with which the stream was declared, and which were changed since.
        offsets: hexadecimal reference of each consumer that has stored another one; None for one
            that was forgotten.
        marked: see Manifest, of the chunks up to these.
        is_deleted: the stream was deleted.
    """

    virtual_host: fields.Text
    stream: fields.Text
    creation: fields.Creation
    after: fields.Number
    next_offset: fields.Number
    size: fields.Number = 0
    crc: fields.Number = 0
    arguments: fields.Plain
    settings: fields.Plain
    offsets: dict[_Hex, fields.Number | None]
    marked: dict[fields.Text, fields.Number] = field(default_factory=dict)
    is_deleted: bool = False

    @property
    def key(self) -> StreamKey:
        """Whose it is."""
        return StreamKey(self.virtual_host, self.stream, self.creation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot, without its chunks.

    Attributes:
        tier: id of the tier.
        epoch, slot: of its key.
        writer: who has written it: a server's name and start; for a fence, who has made it.
        is_fence: the log ends here.
    """

    tier: fields.Text
    epoch: fields.Number
    slot: fields.Number
    writer: fields.Text
    is_fence: bool = False
    sections: tuple[Section, ...] = ()


_read_slot = fields.reader(Slot)


def encode_slot(slot: Slot, chunks: Iterable[bytes | memoryview] = ()) -> bytes:
    """The content of an object.

    Args:
        slot: what stands before the chunks.
        chunks: bytes of all sections, in their order.
    """
    line = {
        "format": _FORMAT,
        "version": WAL_VERSION,
        "tier": slot.tier,
        "epoch": slot.epoch,
        "slot": slot.slot,
        "writer": slot.writer,
        "is_fence": slot.is_fence,
        "sections": [
            {name: getattr(section, name) for name in _SECTION} for section in slot.sections
        ],
    }
    head = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return b"".join([head, f'{{"crc32":{crc32(head)}}}\n'.encode(), *chunks])


_SECTION = tuple(Section.__dataclass_fields__)


def decode_slot(key: str, content: bytes) -> tuple[Slot, list[memoryview]]:
    """What a slot says, and the chunks of each section.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, is damaged, or another one than its key says.
    """
    slot, position = decode_head(key, content)
    return slot, _parts(slot.sections, memoryview(content)[position:])


def decode_head(key: str, content: bytes) -> tuple[Slot, int]:
    """What a slot says, and where its chunks begin, by the first bytes of it; see `decode_slot`."""
    head_end = content.find(b"\n") + 1
    crc_end = content.find(b"\n", head_end) + 1
    if not (head_end and crc_end):
        raise FormatError("it is not whole")
    head = content[:head_end]
    fields.check(head, content[head_end:crc_end], head, _FORMAT, WAL_VERSION)
    slot = _read_slot(head)
    if slot_key(slot.epoch, slot.slot) != key:
        raise FormatError(f"it is slot {slot.slot} of epoch {slot.epoch}")
    return slot, crc_end


def _parts(sections: Sequence[Section], body: memoryview) -> list[memoryview]:
    if sum(section.size for section in sections) != len(body):
        raise FormatError("it is not whole")
    parts, position = [], 0
    for section in sections:
        part = body[position : position + section.size]
        if crc32(part) != section.crc:
            raise FormatError(f"the checksum of what it has of {section.stream} is wrong")
        parts.append(part)
        position += section.size
    return parts


def chunks_in(part: memoryview) -> Iterable[tuple[ChunkHeader, memoryview]]:
    """The chunks of a section.

    Raises:
        FormatError: what is there is not whole chunks.
    """
    position = 0
    while position < len(part):
        header = decode_chunk_header(part, position)
        end = position + header.total_size
        if end > len(part):
            raise FormatError("its last chunk is not whole")
        yield header, part[position:end]
        position = end
