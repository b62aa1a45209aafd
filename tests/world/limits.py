"""Limits of the product that are lowered in some worlds, so that what is rare happens all the time.

None of them changes what is promised: a checkpoint that is written sooner, a reader that takes less
at once. Each is a number of a module, by its name; one that other modules have imported stands
there, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from random import Random

import pytest

_SHARE = 0.3  # of the limits, where some are lowered

LIMITS: dict[str, tuple[float, ...]] = {
    # what is written
    "segments.flush:CHECKPOINT_CHUNKS": (1, 7),
    "segments.flush:MOST_SEALED segments.log:MOST_SEALED": (1, 2),
    "segments.flush:CHECKPOINT_OFFSETS": (8, 40),
    "segments.gaps:OFFSET_GAP segments.log:OFFSET_GAP segments.recovery.recovery:OFFSET_GAP": (
        1 << 12,  # fewer: who publishes thousands at once waits for a flush after each few
        1 << 14,
    ),
    "segments.journal:_COMPACT_BYTES": (1, 100, 400),
    "segments.segment:MAX_GROUP segments.log:MAX_GROUP": (1, 3),
    "segments.segment:NEWEST_BYTES": (0, 300),
    "segments.retention:_AT_ONCE": (1,),
    "segments.truncation:_COPY_BYTES": (64, 1_000),
    "segments.recovery.steps:_COPY_BYTES": (64,),
    "segments.atomic_write:_COPY_BYTES": (64,),
    "segments.chunk_check:_READ_BYTES": (50,),
    "streamd.broker.streams.log_keeper:_IDLE_SECONDS": (0, 0.2),
    "streamd.broker.streams.log_keeper:_SWEEP_SECONDS": (0.1, 1),
    "streamd.broker.streams.stream:QUEUE_BYTES streamd.broker.streams.log_writer:QUEUE_BYTES": (
        0,
        3_000,
    ),
    # what is read
    "segments.reader:_READ_AHEAD": (100, 1_000),
    "segments.reader:SMALL_CHUNK": (100, 600),
    "segments.window:HEAD_READ segments.reader:HEAD_READ segments.row_run:HEAD_READ": (60, 100),
    "segments.reader:_CATCH_UP_STEPS": (1,),
    "segments.reader:_MOST_ROW_CHUNKS": (1, 3),
    "segments.filter_index:MAX_POSTINGS": (3, 30),
    "segments.filter_index:MAX_KEYS": (2, 8),
    "segments.filter_index:_MAX_LOOKUPS": (1,),
    "segments.filter_index:_POSTINGS_AT_ONCE": (1,),
    "streamd.broker.streams.waiters:_LEAVING": (1,),
    "streamd.connections.stream.delivery:_TURN_CHUNKS": (1, 3),
    "streamd.connections.stream.delivery:_TURN_BYTES": (1, 700),
    "streamd.connections.stream.delivery:_READ_BYTES": (1, 700),
    "streamd.connections.stream.delivery:_TURN_STEPS": (1, 3),
    "streamd.connections.amqp091.delivery:TURN_BYTES": (1, 700),
    "streamd.connections.message_delivery:_READ_CHUNKS": (1, 3),
    "streamd.connections.message_delivery:_READ_BYTES": (1, 700),
    "streamd.connections.message_delivery:_READ_STEPS": (1, 3),
    "streamd.connections.message_delivery:_MESSAGES_A_TURN": (1, 3),
    "streamd.connections.message_delivery:_ROW_UNITS": (1, 50),
    "streamd.connections.message_delivery:_CHOICE_UNITS": (1, 50),
    "streamd.connections.message_delivery:HELD_BYTES": (0, 1_500),
    "streamd.connections.stream.publishers:_CHECKED_A_TURN": (1, 3),
    # searches and keys
    "segments.derived.key_schedule:FEW_CHUNKS": (1, 5),
    "streamd.broker.streams.key_upkeep:GROWING_SECONDS": (0, 0.1),
    "segments.search.search:_BLOCK": (1, 3),
    "segments.search.search:_SEGMENTS_A_STEP": (1,),
    "segments.search.span_reader:SPAN_BYTES": (1, 400),
    "streamd.broker.searches:READ_BYTES": (1, 1_000),
    "streamd.broker.searches:PAGE_BYTES": (1, 500),
    # what is in the store
    "segments.tier.plan:BLOCK": (1_000,),
    "segments.tier.plan:FIRST": (500,),
    "segments.tier.plan:MOST_MERGED": (500,),
    "segments.tier.fetching:_BLOCK": (200,),
    # the write-ahead log
    "streamd.broker.tier.wal:SLOT_BYTES": (300, 3_000),
    "streamd.broker.tier.wal:_MOST_UNDER_WAY": (1, 2),
    "streamd.broker.tier.wal:_MOST_BEHIND": (1_000, 20_000),
    "streamd.broker.tier.wal:_SHORTEN_SLOTS": (1, 5, 30),
    "streamd.broker.tier.wal:_SHORTEN_SECONDS": (5, 20),
    "streamd.broker.tier.wal:_LOOK_SECONDS": (0.5, 2),
    "streamd.broker.tier.wal_reading:_AT_ONCE": (1, 3),
    "segments.recovery.tail:_GROUP_BYTES": (1, 1_000),
    # clients
    "clients.producer:_FRAME_MESSAGES": (1, 4),
    "clients.producer:_GATHERED": (1, 4),
    "clients.producer:_WRITE_BYTES": (1, 300),
    "clients.connection:_PIECE_BYTES": (20, 300),
}


@contextmanager
def lowered(chance: Random) -> Iterator[None]:
    """Some of them are lowered in the block, in half of all worlds."""
    share = chance.choice((0, _SHARE))
    patch = pytest.MonkeyPatch()
    for places, values in LIMITS.items():
        is_chosen, value = chance.random() < share, chance.choice(values)
        for place in places.split() if is_chosen else ():
            module, name = place.split(":")
            patch.setattr(import_module(module), name, value)
    try:
        yield
    finally:
        patch.undo()
