"""Whose the tier is: taking it, and learning that another server has.

Theory of operation. The object `v1/cluster` names one server and its epoch; it changes by
compare-and-set alone. `claim` writes this server into it, with an epoch above the one that is
there; nothing else is written into the store before. An empty store is taken, our own is taken
again; another's only where that is asked for (`streamd serve --restore`). From then on the object
is looked at now and then, and whenever a compare-and-set of a manifest fails: as soon as it names
another server, or another epoch, this one is fenced for the rest of its life. That is decided by
what the store says alone, never by a store that does not answer.

A write whose answer was lost is found out by reading the object again: it is ours if it says
exactly what was to be written, as identity, start and revision together are ours alone. One that
is still under way is no harm: the next attempt has the same etag, so one of them wins, and both
say the same or the later one is told of a conflict and begins anew.

These functions block; call them in a thread.
"""

from dataclasses import replace
from typing import NamedTuple

from segments.errors import FormatError, SegmentsError
from segments.tier.cluster import CatalogCopy, Cluster, decode_cluster, encode_cluster
from segments.tier.keys import CLUSTER
from segments.tier.object_store import ConflictError, MissingError, ObjectStore, TierError
from streamd.broker.tier.identity import Identity


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


def look(store: ObjectStore) -> Held | None:
    """Whose the tier is; None in an empty store.

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


def claim(store: ObjectStore, me: Identity, *, takes_over: bool = False) -> Held:
    """Take the tier; the epoch in it is that of `me`, or higher if the store has seen that one.

    Args:
        store: the store.
        me: this server.
        takes_over: also from another server.

    Raises:
        FencedError: it is another server's, or another has taken it at the same time.
        TierError: the store did not answer; try again.
    """
    found = look(store)
    if found is None:
        wanted = Cluster(revision=1, epoch=me.epoch, writer=me.name, start=me.start)
        return _write(store, None, wanted, me)
    cluster = found.cluster
    if is_ours(cluster, me):
        return found
    if cluster.writer != me.name and not takes_over:
        raise FencedError(cluster)
    wanted = replace(
        cluster,
        revision=cluster.revision + 1,
        epoch=max(me.epoch, cluster.epoch + 1),
        writer=me.name,
        start=me.start,
    )
    return _write(store, found, wanted, me)


def is_ours(cluster: Cluster, me: Identity) -> bool:
    """It names this server in this life."""
    return (cluster.writer, cluster.start) == (me.name, me.start)


def check(store: ObjectStore, me: Identity) -> Held | None:
    """See that the tier, which was taken, is still ours; None where its object is gone.

    Raises:
        FencedError: it is not.
        TierError: the store did not answer.
    """
    found = look(store)
    if found is not None and not is_ours(found.cluster, me):
        raise FencedError(found.cluster)
    return found


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
            raise FencedError(found.cluster) from error
        if isinstance(error, ConflictError):
            raise TierError(f"the object {CLUSTER} was changed at the same time") from error
        raise


def _has_moved(before: Held | None, found: Held) -> bool:
    return before is None or found.cluster != before.cluster
