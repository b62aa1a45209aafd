"""Ownership of the tier: taking it, and learning that another server has.

Theory of operation. The object `v1/cluster` names one server and its epoch; it changes by
compare-and-set alone. `claim` writes this server into it, with an epoch above the one that is
there; nothing else is written into the store before. An empty store is taken by a server that never
had a tier, our own is taken again; another's only where that is asked for (`streamd serve
--restore`). From then on the object is looked at now and then, and whenever a compare-and-set of a
manifest fails: as soon as it names another server, or another epoch, this one is fenced for the
rest of its life. That is decided by what the store says alone, never by a store that does not
answer.

A store that is empty, or has another tier, or less than it had, is not ours, whatever it says: a
file system is not mounted yet, an address is wrong, a copy is not complete. That is told
(WrongStoreError), and asked again; nothing is done meanwhile, and nobody is fenced. An empty store
is begun for a data folder that had a tier where its operator says so, with an empty file, see
`begins`.

A write whose answer was lost is found out by reading the object again: it is ours if it says
exactly what was to be written, as identity, start and revision together are ours alone. One that
is still under way is no harm: the next attempt has the same etag, so one of them wins, and both
say the same or the later one is told of a conflict and begins anew.

These functions block; call them in a thread.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from segments.errors import FormatError, SegmentsError
from segments.store.cluster import (
    CatalogCopy,
    Cluster,
    WalMark,
    decode_cluster,
    encode_cluster,
)
from segments.store.manifest_store import are_there
from segments.store.object_names import CLUSTER, VERSION
from segments.store.object_store import ConflictError, MissingError, ObjectStore, TierError
from streamd.broker.tier.identity import UNKNOWN_TIER, Identity, random_name

# What is said of a store that is not the right one.
_WAITING = "It is asked again; meanwhile nothing is uploaded, and nothing leaves the disk"


class Held(NamedTuple):
    """The cluster object as it was read or written, and its etag."""

    cluster: Cluster
    etag: str


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


def look(store: ObjectStore) -> Held | None:
    """The owner of the tier; None in an empty store.

    Raises:
        TierError: the store did not answer, or what it has cannot be understood.
    """
    try:
        found = store.get(CLUSTER)
        return Held(decode_cluster(found.content), found.etag)
    except MissingError:
        return None
    except FormatError as error:
        raise TierError(f"the object {CLUSTER} cannot be used: {error}") from error


def claim(store: ObjectStore, me: Identity, *, takes_over: bool = False, begins: str = "") -> Held:
    """Take the tier; the epoch in it is that of `me`, or higher if the store has seen that one.

    Args:
        store: the store.
        me: this server.
        takes_over: also from another server.
        begins: see `examine`.

    Raises:
        FencedError: it is another server's, or another has taken it at the same time.
        WrongStoreError: see `examine`.
        TierError: the store did not answer; try again.
    """
    found = look(store) if takes_over else examine(store, me, begins)
    return take(store, me, found)


def take(store: ObjectStore, me: Identity, found: Held | None) -> Held:
    """The same, when it is known what is there, and that it may be taken.

    Raises:
        FencedError: another has taken it at the same time.
        TierError: the store did not answer; look at it again.
    """
    if found is None:
        since = me.epoch if me.tier else 0  # what is known of an earlier tier does not count
        wanted = Cluster(
            revision=1,
            epoch=me.epoch,
            writer=me.name,
            start=me.start,
            since=since,
            tier=random_name(),
        )
        return _write(store, None, wanted, me)
    cluster = found.cluster
    if is_ours(cluster, me):
        return found
    wanted = replace(
        cluster,
        revision=cluster.revision + 1,
        epoch=max(me.epoch, cluster.epoch + 1),
        writer=me.name,
        start=me.start,
        tier=cluster.tier or random_name(),
    )
    return _write(store, found, wanted, me)


def examine(store: ObjectStore, me: Identity, begins: str = "") -> Held | None:
    """See that a store may be taken; None for an empty one. Nothing is written.

    Args:
        store: the store.
        me: this server.
        begins: path of a file; where it is there, a server that had a tier begins an empty one, or
            goes on from an older state of its own.

    Raises:
        FencedError: it is the tier that this server had, and another one has taken it over.
        WrongStoreError: it is not the tier that this server had, or not all of it.
        TierError: the store did not answer.
    """
    found = look(store)
    if found is None:
        if me.tier and not (begins and os.path.exists(begins)):
            advice = f"; to begin an empty tier there, make the empty file {begins}"
            raise WrongStoreError(_not_there(store, me) + (advice if begins else ""))
        if store.folders(VERSION):
            raise WrongStoreError(
                f"the tier {store} has no object {CLUSTER}, and has streams: not all of it is "
                f"there; {_WAITING}"
            )
        return None
    has_word = bool(begins) and os.path.exists(begins)
    _check_is_same(store, found.cluster, me, (0, 0) if has_word else (me.claimed, me.revision))
    if found.cluster.writer != me.name:
        raise FencedError(found.cluster)
    return found


def _not_there(store: ObjectStore, me: Identity) -> str:
    return (
        f"the tier {store} is empty, expected the tier {me.tier} of this server: is it mounted, "
        f"and is its address right? {_WAITING}"
    )


def _check_is_same(
    store: ObjectStore, found: Cluster, me: Identity, since: tuple[int, int]
) -> None:
    """Raise WrongStoreError where it is not the tier that this server had, as it was or later.

    Args:
        store: the store.
        found: what it says.
        me: this server.
        since: epoch and revision that are known.
    """
    is_known = bool(found.tier) and me.tier not in ("", UNKNOWN_TIER)
    if is_known and found.tier != me.tier:
        raise WrongStoreError(
            f"the tier {store} is another one, {found.tier}, expected {me.tier}, which this server "
            f"has: is the right store mounted, and is its address right? {_WAITING}"
        )
    _check_not_before(store, found, since)


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
    found = look(store)
    if found is None:
        raise WrongStoreError(_not_there(store, me))
    if not is_ours(found.cluster, me):
        _check_is_same(store, found.cluster, me, (me.epoch, 0))
        raise FencedError(found.cluster)
    if held is not None:
        _check_not_before(store, found.cluster, (held.cluster.epoch, held.cluster.revision))
    return found


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


def look_again(store: ObjectStore, held: Held) -> Held:
    """The present owner of the tier.

    Args:
        store: the store.
        held: what was read before.

    Raises:
        WrongStoreError: it is not there, or another tier is, or an older state of it.
        TierError: the store did not answer, or what it has cannot be understood.
    """
    found = look(store)
    if found is None:
        raise WrongStoreError(f"the tier {store} is empty: is it mounted?")
    if held.cluster.tier not in ("", found.cluster.tier):
        raise WrongStoreError(
            f"the tier {store} is another one, {found.cluster.tier or 'without an id'}, expected "
            f"{held.cluster.tier}: is the right store mounted?"
        )
    _check_not_before(store, found.cluster, (held.cluster.epoch, held.cluster.revision))
    return found


def _check_not_before(store: ObjectStore, found: Cluster, since: tuple[int, int]) -> None:
    """Raise WrongStoreError where it is from before an epoch and a revision that are known."""
    if (found.epoch, found.revision) < since:
        raise WrongStoreError(
            f"the tier {store} is an older state of itself, revision {found.revision} of epoch "
            f"{found.epoch}, expected {since[1]} of {since[0]} or later: is the right store "
            f"mounted? {_WAITING}"
        )


def begin_since(store: ObjectStore, held: Held, me: Identity) -> Held:
    """Say that manifests of epochs before this server's do not count any more.

    Args:
        store: the store.
        held: what was read or written last.
        me: this server, which has taken the tier over, and all manifests that are to count.

    Raises:
        FencedError: it is another's meanwhile.
        TierError: the store did not answer; try again with what `check` gives.
    """
    wanted = replace(held.cluster, revision=held.cluster.revision + 1, since=me.epoch)
    return _write(store, held, wanted, me)


def name_catalog(store: ObjectStore, held: Held, catalog: CatalogCopy, me: Identity) -> Held:
    """Name a copy of the catalog, which is stored, as the newest one.

    Args:
        store: the store.
        held: what was read or written last.
        catalog: the copy.
        me: this server, whose the tier is.

    Raises:
        FencedError: it is another's meanwhile.
        TierError: the store did not answer; try again with what `check` gives.
    """
    wanted = replace(held.cluster, revision=held.cluster.revision + 1, catalog=catalog)
    return _write(store, held, wanted, me)


def mark_wals(
    store: ObjectStore, me: Identity, change: Callable[[tuple[WalMark, ...]], tuple[WalMark, ...]]
) -> Held:
    """Say where write-ahead logs begin that are needed.

    Args:
        store: the store.
        me: this server, whose the tier is.
        change: gives what is to be said, of what is.

    Raises:
        FencedError: it is another's meanwhile.
        TierError: the store did not answer, or something else was changed at the same time; try
            again.
    """
    held = check(store, me)
    wals = change(held.cluster.wals)
    if wals == held.cluster.wals:
        return held
    return _write(
        store, held, replace(held.cluster, revision=held.cluster.revision + 1, wals=wals), me
    )


def _write(store: ObjectStore, before: Held | None, wanted: Cluster, me: Identity) -> Held:
    content = encode_cluster(wanted)
    try:
        if before is None:
            return Held(wanted, store.create(CLUSTER, content))
        return Held(wanted, store.replace(CLUSTER, content, before.etag))
    except TierError as error:
        found = look(store)
        if found is not None and found.cluster == wanted:
            return found
        if found is not None and not is_ours(found.cluster, me) and _has_moved(before, found):
            if before is not None and found.cluster.tier not in ("", wanted.tier):
                raise  # it is another store by now
            raise FencedError(found.cluster) from error
        if isinstance(error, ConflictError):
            raise TierError(f"the object {CLUSTER} was changed at the same time") from error
        raise


def _has_moved(before: Held | None, found: Held) -> bool:
    return before is None or found.cluster != before.cluster
