"""What is promised of the tier, against what the store has and what servers have said of it.

The witness reads the store as docs/internals/tier.md says that it is to be read.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.world.store import (
    CLUSTER,
    LOG,
    SNAPSHOTS,
    WAL,
    Manifest,
    Objects,
    read_cluster,
    read_manifests,
)
from tests.world.witness import Seen, Witness

FENCED_SECONDS = 60.0  # until an old server knows, once the store answers
_COPIES = 2  # of the catalog
_LOOKS = 61.0  # seconds since a server that only reads has looked


class Taken(NamedTuple):
    """What an old server has said, so many seconds after another one had taken over."""

    seconds: float
    answer: str


class Read(NamedTuple):
    """What somebody has read of a stream that is deleted and made again, from its first message.

    Attributes:
        seen: offset, life and number of each message.
        gone: lives whose deletion was answered before.
        cut: offsets before which this life was cut, answered or not.
        torn: lives that went on in an earlier one, which was restored when the machine was lost.
    """

    seen: list[tuple[int, int, int]]
    gone: frozenset[int]
    cut: dict[int, int]
    torn: frozenset[int] = frozenset()


@dataclass
class TierWitness:
    """See above.

    Attributes:
        messages: what is known of the stream.
        unstored: objects that a manifest named before they were there.
        removed: objects that were removed while a manifest named them.
        begun: what a server has put into the place where its store was missing.
        changed: what an old server has changed that counts.
        written: by servers that only read.
        accepted: changes that a server which only reads did not refuse.
        untold: servers that only read and did not say so.
        taken: by old servers.
        confirmed_late: messages that an old server has confirmed through the store.
        restored: offsets that the store had when a machine was lost, from one to before another.
        deleted: streams, for good.
        lost: objects that the store had, while the server that writes still had their segments.
        offset: that was stored for "app", the newest one that was uploaded.
        reads: of the stream that is deleted and made again.
        missed: searches, of a server that only reads, that missed what it had delivered.
        hangs: what did not come to an end although the store answers.
        objects: the store, in the end.
        status: of the server then, and rows of its streams.
        rows: see above.
        named: what the store named then.
        looked: of the server that only reads, then.
        bad: objects that are not as they should be, then.
        has_offset: what is stored for "app", then.
        log: what the server that only reads has, then; None where there is none.
    """

    messages: Witness
    unstored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    confirmed_late: list[str] = field(default_factory=list)
    restored: list[tuple[int, int]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    offset: int | None = None
    reads: list[Read] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    objects: Objects = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, str]] = field(default_factory=list)
    named: dict[str, Manifest] = field(default_factory=dict)
    looked: float | None = None
    bad: list[str] = field(default_factory=list)
    has_offset: int | None = None
    log: list[Seen] | None = None

    @property
    def manifests(self) -> dict[str, Manifest]:
        """That count in the end."""
        return read_manifests(self.objects)

    def judge(self) -> list[str]:
        """What did not hold."""
        return [f"{name}: {fault}" for name, check in PROMISES.items() for fault in check(self)]


def _is_stored_first(told: TierWitness) -> Iterator[str]:
    """internals/tier.md: "A segment is stored when a manifest names it", U3 before U4."""
    yield from (f"{key} was named and was not there" for key in told.unstored)


def _what_is_named_stays(told: TierWitness) -> Iterator[str]:
    """internals/tier.md: "out of the manifest, then … their objects out of the store"."""
    yield from (f"{key} was removed while it was named" for key in told.removed)


def _an_empty_place_stays_empty(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "A data folder that had a tier does not begin another one by itself"."""
    yield from (f"{key} was made where the store was missing" for key in told.begun)


def _an_old_server_changes_nothing(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "can change nothing in the tier any more"."""
    yield from (f"an old server has changed {key}" for key in told.changed)


def _an_old_server_notices(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "It notices within a minute, says so …, takes no more messages"."""
    for seconds, answer in told.taken:
        if seconds > FENCED_SECONDS + 1:  # until the answer of the store
            yield f"{answer} by an old server, {seconds:.0f} seconds after it was replaced"


def _it_confirms_nothing(told: TierWitness) -> Iterator[str]:
    """tier/wal.py: "this server is over, nothing is confirmed any more"."""
    yield from (f"{sent} was confirmed by an old server" for sent in told.confirmed_late)


def _it_only_reads(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "it writes nothing into the store"."""
    yield from (f"a server that only reads has written {key}" for key in told.written)


def _it_refuses(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "It refuses to publish, to declare, to delete and to change anything"."""
    yield from (f"a server that only reads has accepted to {what}" for what in told.accepted)


def _clients_are_told(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "`read_only` is among the properties of the server"."""
    yield from (f"a server that only reads does not say so: {what}" for what in told.untold)


def _what_was_stored_is_restored(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "another one goes on from what the tier has"."""
    log = {seen.offset for seen in told.messages.log}
    for first, following in told.restored if log else ():
        for offset in range(max(first, told.messages.asked), following):
            if offset not in log:
                yield f"offset {offset} was in the tier when a machine was lost, and is not there"


def _stored_offsets_are_restored(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "offsets that consumers have stored …, as of the last upload"."""
    log, offset = told.messages.log, told.offset
    if offset is None or not told.status or (log and offset < log[0].offset):
        return  # it may have gone with its messages
    if told.has_offset is None or told.has_offset < offset:
        yield f"offset {told.has_offset} is stored, {told.offset} was, and was uploaded"


def _a_life_is_one_stream(told: TierWitness) -> Iterator[str]:
    """internals/tier.md: "created again shares nothing with the one before"."""
    yield from mixed_lives(told.reads)


def mixed_lives(reads: Iterable[Read]) -> Iterator[str]:
    """What was read of lives that are over, or of several, or with messages left out."""
    for seen, gone, cut, torn in reads:
        lives = {life for _, life, _ in seen}
        if len(lives - torn) > 1 or lives & gone:
            yield f"of a stream whose lives {sorted(gone)} are over, {sorted(lives)} were read"
            continue
        for (before, life, number), (offset, _, following) in pairwise(seen):
            last = before + following - number - 1  # of what is missing, unless a gap comes first
            if following != number + 1 and min(offset - 1, last) >= cut.get(life, 0):
                yield f"message {following} at {offset} came behind {number} at {before}"


def _it_finds_what_it_has(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "`streamd find` … work as they do there"."""
    yield from told.missed


def _nothing_waits_for_ever(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "the server goes on by itself"."""
    yield from told.hangs


def _figures_are_true(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "Everything is in the tier", "Waiting are full segments …"."""
    if not told.status:
        return
    sizes = {name: one.sizes(".segment") for name, one in told.named.items()}
    expected = {
        "bytes_waiting": 0,
        "bytes_remote": sum(sum(one.values()) for one in sizes.values()),
    }
    cluster = read_cluster(told.objects)
    expected |= {} if cluster is None else {"epoch": cluster["epoch"]}
    for name, value in expected.items():
        if int(told.status[name]) != value:
            yield f"{name} is said to be {told.status[name]}, it is {value}"
    if told.status["state"] != "ok":
        yield f"the state is {told.status['state']}: {told.status['sentence']}"
    for row in told.rows:
        size = sum(sizes.get(row["name"], {}).values())
        if row["sentence"] or int(row["bytes_remote"]) != size:
            yield f"{row['name']} has {size} bytes, not {row['bytes_remote']}: {row['sentence']}"


def _objects_are_whole(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "every byte in the store … exit code 0"."""
    for manifest in told.manifests.values():
        for key, size in manifest.sizes().items():
            kept = told.objects.get(key)
            if key in told.lost and kept is None:
                continue  # until its file is to leave the disk
            if kept is None or len(kept.content) != size:
                yield f"{key} is named with {size} bytes, and is not like that"
    yield from (one for one in told.bad if one.partition(":")[0] not in told.lost)


def _nothing_is_left(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "so does deleting the stream"; "`gc` removes objects that nothing names"."""
    if not told.status:
        return
    manifests = told.manifests.values()
    named = {CLUSTER} | {
        key for one in manifests for key in [*one.sizes(), f"{one.folder}/manifest"]
    }
    left = sorted(key for key in told.objects.keys() - named if not key.startswith("probe-"))
    yield from (f"{key} is left" for key in left if _is_left_slot(told, key))
    left = [key for key in left if not key.startswith((WAL, LOG))]  # of the log nothing goes
    copies = [key for key in left if key.startswith(SNAPSHOTS)]
    if len(copies) > _COPIES:
        yield f"there are {len(copies)} snapshots of the catalog"
    epoch = told.status["epoch"]
    for key in left:
        parts = key.rpartition("/")[2].split(".")
        if key not in copies and (len(parts) < 2 or parts[1] != epoch):
            yield f"{key} is left"


def _is_left_slot(told: TierWitness, key: str) -> bool:
    """Nobody needs it: no log begins at or before it, and none ends there."""
    if not key.startswith(WAL):
        return False
    epoch, slot = map(int, key.removeprefix(WAL).split("/"))
    begins = dict((read_cluster(told.objects) or {}).get("wals", ()))
    is_needed = slot >= begins.get(epoch, slot + 1) or epoch >= int(told.status["epoch"])
    return not (is_needed or b'"is_fence":true' in told.objects[key].content)


def _what_is_deleted_is_gone(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "so does deleting the stream"."""
    yield from (f"{name} was deleted" for name in sorted(told.deleted & told.manifests.keys()))


def _a_reader_has_all(told: TierWitness) -> Iterator[str]:
    """how-to/tier.md: "What is uploaded is there … within a minute if nobody does"."""
    if told.log is not None and told.messages.log and told.log != told.messages.log:
        here, there = set(told.log), set(told.messages.log)
        lacks, invents = sorted(there - here)[:3], sorted(here - there)[:3]
        yield f"a server that only reads lacks {lacks}, and has {invents} that are not there"
    if told.looked is not None and told.looked > _LOOKS:
        yield f"a server that only reads has not looked for {told.looked:.0f} s"


PROMISES: dict[str, Callable[[TierWitness], Iterator[str]]] = {
    "a segment is stored before it is named": _is_stored_first,
    "what is named stays": _what_is_named_stays,
    "an empty place stays empty": _an_empty_place_stays_empty,
    "an old server changes nothing": _an_old_server_changes_nothing,
    "an old server notices": _an_old_server_notices,
    "an old server confirms nothing": _it_confirms_nothing,
    "a read-only server writes nothing": _it_only_reads,
    "a read-only server refuses changes": _it_refuses,
    "clients are told that it only reads": _clients_are_told,
    "what was stored is restored": _what_was_stored_is_restored,
    "stored offsets are restored": _stored_offsets_are_restored,
    "a life is one stream": _a_life_is_one_stream,
    "a read-only server finds what it has": _it_finds_what_it_has,
    "nothing waits for ever": _nothing_waits_for_ever,
    "figures of the tier are true": _figures_are_true,
    "objects are whole": _objects_are_whole,
    "nothing is left in the store": _nothing_is_left,
    "what is deleted is gone": _what_is_deleted_is_gone,
    "a read-only server has all": _a_reader_has_all,
}
