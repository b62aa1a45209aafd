"""Ownership of the tier: taking it, changing what is known of it, learning that another has it.

Theory of operation. What is known of a tier is the fold of its log (store/metadata_log.py). `take`
creates an entry that claims it, with an epoch above those before; nothing else is written
into the store before but, once, the root with the first snapshot. An empty store is begun by a
server that never had a tier, our own is taken again; another's only where that is asked for
(`streamd serve --restore`). What an earlier version has left gets a root in its place.

From then on the log is read on now and then, and whenever a compare-and-set of a manifest fails: as
soon as another server, or another start of this one, has claimed it, this one is fenced for the
rest of its life. That is decided by what the store says alone, never by a store that does not
answer. Whoever writes an entry meets that claim in its place.

Reading on begins with the last object that is known: it is never changed, or removed. A store that
does not have it, as it was, is not the right one: a file system is not mounted yet, an address is
wrong, a copy is not complete. That is told (WrongStoreError), and asked again; nothing is done
meanwhile, and nobody is fenced. An empty store is begun for a data folder that had a tier where its
operator says so, with an empty file, see `examine`.

These functions block; call them in a thread.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from segments.checksum import crc32
from segments.errors import FormatError, SegmentsError
from segments.store import metadata_log
from segments.store.cluster import Cluster, EarlierRoot, Root, WalMark, encode_root
from segments.store.manifest_store import are_there
from segments.store.metadata_log import (
    Entry,
    Found,
    Held,
    Row,
    encode_entry,
    encode_snapshot,
    following,
    has_snapshot_behind,
    read_entry,
    read_on,
    read_root,
)
from segments.store.object_names import CLUSTER, NODES_FOLDER, SNAPSHOT_FOLDER, VERSION
from segments.store.object_store import MissingError, ObjectStore, TierError
from streamd.broker.tier.identity import UNKNOWN_TIER, Identity, random_name
from streamd.net import threads

# What is said of a store that is not the right one.
_WAITING = "It is asked again; meanwhile nothing is uploaded, and nothing leaves the disk"
_ATTEMPTS = 20  # while entries of this server itself are faster
_FAR = 1_000  # revisions that are read one by one rather than a snapshot
_PUTS = 3  # of a snapshot: it is large


class FencedError(SegmentsError):
    """Another server has the tier.

    Attributes:
        cluster: what the store says.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(f"another server, epoch {cluster.epoch}, has taken over the tier")
        self.cluster = cluster


class WrongStoreError(TierError):
    """The store is not the one that this server's tier is in, or not all of it is there."""


class NotThereError(TierError):
    """The store does not have what was written into it."""


class FasterError(TierError):
    """Another entry is in the place of one that was to be written; read on."""


class Catalog(NamedTuple):
    """A catalog for the first snapshot, see metadata_log.encode_snapshot."""

    content: bytes
    change: int = 0


def look(store: ObjectStore) -> Held | None:
    """What is known of the tier; None in an empty store.

    Raises:
        TierError: the store did not answer, or what it has cannot be understood.
    """
    try:
        return metadata_log.look(store, threads.together)
    except FormatError as error:
        raise TierError(str(error)) from error


def find(store: ObjectStore) -> Found | None:
    """All that a store has; see metadata_log.find."""
    return metadata_log.find(store, threads.together)


def go_on(store: ObjectStore, held: Held, *, is_to_end: bool = False) -> tuple[Held, list[Entry]]:
    """What is known of the tier now, and the entries since it was looked at last.

    Args:
        store: the store.
        held: what is known.
        is_to_end: see read_on.

    Raises:
        WrongStoreError: it is not there, or another tier is, or an older state of it.
        TierError: the store did not answer, or what it has cannot be understood.
    """
    _check_there(store, held)
    try:
        steps = list(read_on(store, held, threads.together, is_to_end=is_to_end))
    except FormatError as error:
        raise TierError(str(error)) from error
    return steps[-1][0] if steps else held, [entry for _, entry in steps]


def _check_there(store: ObjectStore, held: Held) -> None:
    """Raise WrongStoreError where the last object that is known is not there as it was."""
    try:
        found = store.get_changed(held.key, held.etag)
    except MissingError:
        raise _wrong(store, held.cluster) from None
    if found is not None and crc32(found.content) != held.crc:
        raise _wrong(store, held.cluster)


def _wrong(store: ObjectStore, known: Cluster) -> TierError:
    """Why what is known is not there."""
    try:
        found = read_root(store)
    except FormatError as error:
        return TierError(str(error))
    if found is None:
        return WrongStoreError(_not_there(store, known.tier))
    root = found[0]
    tier = root.tier if isinstance(root, Root) else root.cluster.tier
    if tier != known.tier:
        return WrongStoreError(_another(store, tier, known.tier))
    return WrongStoreError(_older(store, "it ends before", (known.epoch, known.revision)))


def _not_there(store: ObjectStore, tier: str) -> str:
    return (
        f"the tier {store} is empty, expected the tier {tier} of this server: is it mounted, "
        f"and is its address right? {_WAITING}"
    )


def _another(store: ObjectStore, found: str, tier: str) -> str:
    return (
        f"the tier {store} is another one, {found or 'without an id'}, expected {tier}, which this "
        f"server has: is the right store mounted, and is its address right? {_WAITING}"
    )


def _older(store: ObjectStore, found: str, since: tuple[int, int]) -> str:
    return (
        f"the tier {store} is an older state of itself, {found}, expected revision {since[1]} of "
        f"epoch {since[0]} or later: is the right store mounted? {_WAITING}"
    )


def claim(
    store: ObjectStore,
    me: Identity,
    *,
    takes_over: bool = False,
    begins: str = "",
    catalog: Callable[[EarlierRoot | None], Catalog] = lambda _: Catalog(b""),
) -> Held:
    """Take the tier; the epoch in it is that of `me`, or higher if the store has seen that one.

    Args:
        store: the store.
        me: this server.
        takes_over: also from another server.
        begins: see `examine`.
        catalog: gives what the log begins with where there is none yet.

    Raises:
        FencedError: it is another server's, or another has taken it at the same time.
        WrongStoreError: see `examine`.
        TierError: the store did not answer; try again.
    """
    if takes_over:
        held = look(store)
    else:
        found = examine(store, me, None, begins)
        held = None if found is None else found.held
    if held is None or held.earlier is not None:
        held = begin(store, me, held, catalog(None if held is None else held.earlier))
    return take(store, me, held)[0]


def examine(
    store: ObjectStore, me: Identity, known: Held | None = None, begins: str = ""
) -> Found | None:
    """See that a store may be taken; None for an empty one. Nothing is written.

    Args:
        store: the store.
        me: this server.
        known: what its data folder knows of the log.
        begins: path of a file; where it is there, a server that had a tier begins an empty one, or
            goes on from an older state of its own.

    Raises:
        FencedError: it is the tier that this server had, and another one has taken it over.
        WrongStoreError: it is not the tier that this server had, or not all of it.
        TierError: the store did not answer.
    """
    has_word = bool(begins) and os.path.exists(begins)
    try:
        if known is not None and not has_word:
            found: Found | None = _after(store, known)
        else:
            found = find(store)
    except FormatError as error:
        raise TierError(str(error)) from error
    except WrongStoreError as error:
        advice = f"; to begin or go on there all the same, make the empty file {begins}"
        raise WrongStoreError(f"{error}{advice if begins else ''}") from error
    if found is None:
        if me.tier and not has_word:
            advice = f"; to begin an empty tier there, make the empty file {begins}"
            raise WrongStoreError(_not_there(store, me.tier) + (advice if begins else ""))
        if set(store.folders(VERSION)) - {SNAPSHOT_FOLDER, NODES_FOLDER}:
            raise WrongStoreError(
                f"the tier {store} has no object {CLUSTER}, and has streams: not all of it is "
                f"there; {_WAITING}"
            )
        return None
    cluster = found.held.cluster
    is_begun = has_word and (cluster.writer, cluster.start) == (me.name, "")  # and never claimed
    if cluster.tier and me.tier not in ("", UNKNOWN_TIER, cluster.tier) and not is_begun:
        raise WrongStoreError(_another(store, cluster.tier, me.tier))
    since = (me.claimed, me.revision)
    if not has_word and (cluster.epoch, cluster.revision) < since:
        at = f"revision {cluster.revision} of epoch {cluster.epoch}"
        raise WrongStoreError(_older(store, at, since))
    if cluster.writer != me.name:
        raise FencedError(cluster)
    return found


def _after(store: ObjectStore, known: Held) -> Found:
    _check_there(store, known)
    tier, held, entries = known.cluster.tier, known, list[Entry]()
    is_far = has_snapshot_behind(store, tier, known.cluster.revision + _FAR)
    if not is_far:
        held, entries = go_on(store, known, is_to_end=True)
    if is_far or has_snapshot_behind(store, tier, held.cluster.revision):
        found = find(store)
        if found is not None:
            return found
    return Found(held, None, entries)


def begin(store: ObjectStore, me: Identity, earlier: Held | None, catalog: Catalog) -> Held:
    """Begin the log of a tier, in an empty store or where an earlier version has left one.

    It may end anywhere, and be begun again: until there is a root nothing refers to the snapshot.

    Args:
        store: the store.
        me: this server.
        earlier: what is there; None for nothing.
        catalog: what the log begins with.

    Raises:
        FencedError: another has begun it at the same time.
        TierError: the store did not answer; look at it again.
    """
    if earlier is None:
        since = me.epoch if me.tier else 0  # what is known of an earlier tier does not count
        cluster = Cluster(
            revision=0, epoch=0, writer=me.name, start="", since=since, tier=random_name()
        )
    else:
        # In the name of this server: whoever had it is fenced from the root on.
        tier = earlier.cluster.tier or random_name()
        cluster = replace(earlier.cluster, tier=tier, writer=me.name, start="")
    content = encode_snapshot(cluster, catalog.change, catalog.content)
    root = Root(
        tier=cluster.tier,
        revision=cluster.revision,
        uid=random_name(),
        size=len(content),
        crc=crc32(content),
    )
    for left in reversed(range(_PUTS)):  # with each attempt of the whole it has another name
        try:
            store.put(root.key, content)
            check_there(store, {root.key: len(content)})
            break
        except TierError:
            if not left:
                raise
    text = encode_root(root)
    try:
        if earlier is None:
            return Held(cluster, CLUSTER, store.create(CLUSTER, text), crc32(text))
        return Held(cluster, CLUSTER, store.replace(CLUSTER, text, earlier.etag), crc32(text))
    except TierError as error:
        try:
            found = read_root(store)
        except FormatError:
            raise error from None
        if found is not None and found[0] == root:
            return Held(cluster, CLUSTER, *found[1:])
        held = look(store)
        if held is not None and held.cluster.writer != me.name and _has_moved(earlier, held):
            raise FencedError(held.cluster) from error
        raise TierError(str(error)) from error


def _has_moved(before: Held | None, found: Held) -> bool:
    return before is None or found.cluster != before.cluster


def take(
    store: ObjectStore, me: Identity, held: Held, *, may_move: bool = False
) -> tuple[Held, list[Entry]]:
    """Claim a tier, when it is known what is there, and that it may be taken.

    Returns:
        What is known then, and entries of this server that came before.

    Args:
        store: the store.
        me: this server.
        held: what is there.
        may_move: see `_append`.

    Raises:
        FencedError: another has taken it at the same time.
        TierError: the store did not answer; look at it again.
    """
    met: list[Entry] = []
    for _ in range(_ATTEMPTS):
        cluster = held.cluster
        if is_ours(cluster, me):
            return held, met
        wanted = Entry(
            tier=cluster.tier,
            revision=cluster.revision + 1,
            epoch=max(me.epoch, cluster.epoch + 1),
            writer=me.name,
            start=me.start,
            is_claim=True,
            node=me.node,
        )
        try:
            return _append(store, held, wanted, may_move=may_move), met
        except FasterError:
            held, entries = go_on(store, held)
            met += entries
            now = held.cluster
            if not is_ours(now, me) and (now.writer, now.start) != (cluster.writer, cluster.start):
                raise FencedError(now) from None
    raise TierError("the log in the tier changes all the time")


def _append(store: ObjectStore, held: Held, entry: Entry, *, may_move: bool) -> Held:
    """Write an entry behind what is known.

    Args:
        store: the store.
        held: what is known.
        entry: follows it.
        may_move: what is at the store's address may be another one for a while, as with a file
            system that is not mounted: the entry is looked for when it was written.

    Raises:
        FasterError: another one is there.
        TierError: nobody knows whether it is there, or it is not.
    """
    _check_there(store, held)
    content = encode_entry(entry)
    wanted = crc32(content)
    try:
        etag = store.create(entry.key, content)
    except TierError as error:
        try:
            read = read_entry(store, entry.tier, entry.revision)
        except MissingError:
            raise TierError(str(error)) from error
        except FormatError as bad:
            raise TierError(str(bad)) from error
        if read.entry != entry:
            raise FasterError(f"{entry.key} was written at the same time") from error
        return following(held, read)
    if may_move:
        _check_there(store, held)
        check_there(store, {entry.key: len(content)})
    return Held(metadata_log.after(held.cluster, entry), entry.key, etag, wanted)


def is_ours(cluster: Cluster, me: Identity) -> bool:
    """Whether it names this server in its present life."""
    return (cluster.writer, cluster.start) == (me.name, me.start)


def check(store: ObjectStore, me: Identity, held: Held | None = None) -> Held:
    """See that the tier, which was taken, is still ours.

    Args:
        store: the store.
        me: this server.
        held: what was read or written before.

    Raises:
        FencedError: it is not.
        WrongStoreError: it is not there, or another tier is, or an older state of it.
        TierError: the store did not answer.
    """
    if held is not None:
        found = go_on(store, held)[0]
    else:
        there = look(store)
        if there is None:
            raise WrongStoreError(_not_there(store, me.tier))
        found = there
    require_ours(store, found.cluster, me)
    return found


def require_ours(store: ObjectStore, cluster: Cluster, me: Identity) -> None:
    """See that what was read of the tier, which was taken, says so.

    Raises:
        FencedError: another server has it.
        WrongStoreError: another tier is there, or an older state of it.
    """
    if is_ours(cluster, me):
        return
    if me.tier not in ("", UNKNOWN_TIER, cluster.tier):
        raise WrongStoreError(_another(store, cluster.tier, me.tier))
    if (cluster.epoch, cluster.revision) < (me.epoch, 0):
        raise WrongStoreError(_older(store, f"it ends with epoch {cluster.epoch}", (me.epoch, 0)))
    raise FencedError(cluster)


def check_there(store: ObjectStore, sizes: Mapping[str, int]) -> None:
    """See that a store which was found to be ours has what was written.

    An object says nothing of where it went: a file system may have gone, and come back since.

    Raises:
        NotThereError: it does not.
        TierError: it did not answer.
    """
    if not are_there(store, sizes):
        raise NotThereError(
            f"what was written into the tier {store} is not there: was something else mounted for "
            "a while? It is written again"
        )


def begin_since(store: ObjectStore, held: Held, me: Identity) -> Held:
    """Say that manifests of epochs before this server's do not count any more.

    Args:
        store: the store.
        held: what was read or written last.
        me: this server, which has taken the tier over, and all manifests that are to count.

    Raises:
        FencedError: it is another's meanwhile.
        TierError: the store did not answer; try again.
    """
    return _change(store, me, held, lambda entry: replace(entry, since=me.epoch))


def mark_wals(
    store: ObjectStore,
    me: Identity,
    held: Held | None,
    change: Callable[[tuple[WalMark, ...]], tuple[WalMark, ...]],
    *,
    may_move: bool = False,
) -> Held:
    """Say where write-ahead logs begin that are needed.

    Args:
        store: the store.
        me: this server, whose the tier is.
        held: what was read or written last.
        change: gives what is to be said, of what is.
        may_move: see `_append`.

    Raises:
        FencedError: it is another's meanwhile.
        TierError: the store did not answer; try again.
    """
    held = check(store, me, held)

    def marked(entry: Entry) -> Entry:
        return replace(entry, wals=change(entry.wals or ()))

    return _change(store, me, held, marked, may_move=may_move)


def put_rows(
    store: ObjectStore,
    held: Held,
    rows: tuple[Row, ...],
    change: int,
    schema: int,
    *,
    may_move: bool = False,
) -> Held:
    """Say which rows of the catalog are other ones, see Entry.

    Args:
        store: the store.
        held: what was read or written last; this server has the tier.
        rows: see Entry.
        change: see there, too.
        schema: and so is this.
        may_move: see `_append`.

    Raises:
        FasterError: another entry is there; read on, and apply what it says.
        TierError: the store did not answer; read on.
    """
    entry = replace(_next(held.cluster), wals=None, rows=rows, change=change, schema=schema)
    return _append(store, held, entry, may_move=may_move)


def _next(cluster: Cluster) -> Entry:
    """What may follow: an entry that says again what is known."""
    return Entry(
        tier=cluster.tier,
        revision=cluster.revision + 1,
        epoch=cluster.epoch,
        writer=cluster.writer,
        start=cluster.start,
        wals=cluster.wals,
    )


def _change(
    store: ObjectStore,
    me: Identity,
    held: Held,
    change: Callable[[Entry], Entry],
    *,
    may_move: bool = False,
) -> Held:
    for _ in range(_ATTEMPTS):
        wanted = change(_next(held.cluster))
        if wanted.wals == held.cluster.wals:
            if wanted.since in (None, held.cluster.since):
                return held
            wanted = replace(wanted, wals=None)
        try:
            return _append(store, held, wanted, may_move=may_move)
        except FasterError:
            held = check(store, me, held)
    raise TierError("the log in the tier changes all the time")
