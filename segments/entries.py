"""Entries on their way into a chunk, and taking them apart: without duplicates, cut to a size."""

import struct
from collections import Counter
from collections.abc import Sequence
from operator import ge
from typing import NamedTuple

from segments.chunk import split_entries
from segments.codec import walk_entries

ID_SIZE = 8  # bytes of a publishing id


class Entries(NamedTuple):
    """Entries of one publisher that may stand in one chunk together.

    Attributes:
        publishing_ids: ID_SIZE bytes for each entry, as received, for the confirm.
        data: the entries back to back, as a chunk stores them.
        num_entries: how many.
        num_records: how many messages, sub-batches counted through.
        filter_values: one per entry, empty where there is none; of a sub-batch how many of its
            messages have which; None when there are none at all.
        marks: those of the stream's further filter properties, see `property_keys`.
        property_keys: for each mark the keys of the entries; of a sub-batch how many of its
            messages have which.
        ends: where each message ends in the data; None where that is not known, or none needed it.
    """

    publishing_ids: bytes
    data: bytes
    num_entries: int
    num_records: int
    filter_values: Sequence[bytes] | Counter[bytes] | None
    marks: tuple[bytes, ...] = ()
    property_keys: tuple[Sequence[bytes], ...] | Counter[bytes] = ()
    ends: Sequence[int] | None = None


def has_filter_values(entries: Entries) -> bool:
    """Whether their chunks are to be small, so that filters can leave some out."""
    return entries.filter_values is not None or bool(entries.marks)


def without_duplicates(entries: Entries, sequence: int | None) -> Entries | None:
    """The entries whose publishing id is higher than any before; None when there are none.

    Args:
        entries: of a publisher with a reference.
        sequence: its highest publishing id so far, None for none.
    """
    last = -1 if sequence is None else sequence
    ids = struct.unpack(f">{entries.num_entries}Q", entries.publishing_ids)
    if ids[0] > last and not any(map(ge, ids, ids[1:])):
        return entries
    kept = []
    for number, publishing_id in enumerate(ids):
        if publishing_id > last:
            kept.append(number)
            last = publishing_id
    return pick(entries, kept) if kept else None


def pick(entries: Entries, kept: Sequence[int]) -> Entries:
    """Some of the entries, by their places in order."""
    if len(kept) == entries.num_entries:
        return entries
    walked = list(walk_entries(entries.data))
    ids, values, keys = entries.publishing_ids, entries.filter_values, entries.property_keys
    assert not isinstance(values, Counter)  # noqa: S101 - a sub-batch is one entry
    assert not isinstance(keys, Counter)  # noqa: S101
    return Entries(
        b"".join(ids[ID_SIZE * n : ID_SIZE * (n + 1)] for n in kept),
        b"".join(entries.data[walked[n].start : walked[n].end] for n in kept),
        len(kept),
        sum(walked[n].num_records for n in kept),
        None if values is None else [values[n] for n in kept],
        entries.marks,
        tuple([column[n] for n in kept] for column in keys),
    )


def split(entries: Entries, max_records: int, max_bytes: int) -> list[Entries]:
    """Cut entries into runs that fit into a chunk each; a larger single entry stays whole."""
    fits = entries.num_records <= max_records and len(entries.data) <= max_bytes
    if fits or entries.num_entries == 1:
        return [entries]
    parts, start = [], 0
    for data, num_entries, num_records in split_entries(entries.data, max_records, max_bytes):
        end = start + num_entries
        values, keys = entries.filter_values, entries.property_keys
        assert not isinstance(values, Counter)  # noqa: S101 - as above
        assert not isinstance(keys, Counter)  # noqa: S101
        parts.append(
            Entries(
                entries.publishing_ids[ID_SIZE * start : ID_SIZE * end],
                data,
                num_entries,
                num_records,
                None if values is None else values[start:end],
                entries.marks,
                tuple([column[start:end] for column in keys]),
            )
        )
        start = end
    return parts
