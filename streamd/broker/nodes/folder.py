"""What the data folder of a node says it is, and how it becomes something else.

    read-only     scratch: that of a standby, or of a server that only reads
    restoring     what is there is, or will be, replaced by what the store has: a takeover. It says
                  which claim is taken over; an empty one is of `--restore`
    neither       that of the server that leads, or has led, if there is a catalog

`node.json` says which node of which tier it is the folder of, and which process was it last. What
an earlier leader leaves is moved to `earlier` when it becomes a standby, until what the cluster
lacks of it is found (leftovers.py).

These functions block.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from pathlib import Path
from uuid import uuid4

from segments.atomic_write import replace_file
from segments.disk import OsDisk
from segments.errors import CorruptError
from segments.store.metadata_log import Held
from streamd.broker.catalog.catalog import CATALOG_FILE
from streamd.broker.tier.identity import IDENTITY_FILE, UNKNOWN_TIER, known_identity
from streamd.broker.tier.restore import (
    RESTORING,
    SCRATCH,
    SCRATCH_FOLDERS,
    SQLITE_SUFFIXES,
    STREAMS,
    RestoreError,
)

NODE_FILE = "node.json"
EARLIER = "earlier"


class Standing(Enum):
    """What a node begins as."""

    LEADS = auto()  # on its own data folder
    TAKES_OVER = auto()
    STANDS_BY = auto()


class NotOursError(Exception):
    """The store is not that of this node's cluster: one sentence. It is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """What a folder knows of its node.

    Attributes:
        node: its name.
        tier: id of the tier, for good; empty before the node has joined a cluster.
        start: of the process that had the folder last.
        boot: the run of the machine that it belonged to.
        place: the device and the number of the folder there.
    """

    node: str
    tier: str
    start: str
    boot: str
    place: str

    def is_of(self, data: str) -> bool:
        """Whether it is that of a data folder, and not of one that this is a copy of.

        Whoever holds the lock of that folder knows that the process before it has ended.
        """
        return (self.boot, self.place) == (OsDisk().boot(), _place(data))


def _place(data: str) -> str:
    found = os.stat(data)
    return f"{found.st_dev}:{found.st_ino}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is in a data folder.

    Attributes:
        writer: identity of the server; empty for a new one.
        tier: id of the tier that it had last, or its node has joined; empty for none.
        file: what it knows of its node; None for a new one.
        is_scratch: see above.
        over: epoch of the claim that is being taken over; -1 where the operator has said so, None
            where nothing is.
        seen: what was there of its heartbeat then, by its etag.
        has_catalog, has_streams: whether there are any.
    """

    writer: str = ""
    tier: str = ""
    file: NodeFile | None = None
    is_scratch: bool = False
    over: int | None = None
    seen: str = ""
    has_catalog: bool = False
    has_streams: bool = False


def look_into(data: str) -> Facts:
    """What a folder is.

    Raises:
        CorruptError: a file that says so is damaged.
        StorageError: the system refused.
    """
    identity, file = known_identity(data), _node_file(data)
    tier = "" if identity is None else identity.tier
    over, seen = _over(data)
    return Facts(
        writer="" if identity is None else identity.name,
        tier=tier if file is None or not file.tier else file.tier,
        file=file,
        is_scratch=Path(data, SCRATCH).exists(),
        over=over,
        seen=seen,
        has_catalog=Path(data, CATALOG_FILE).exists(),
        has_streams=any(Path(data, STREAMS).glob("*/*")),
    )


def _node_file(data: str) -> NodeFile | None:
    path = Path(data, NODE_FILE)
    try:
        return NodeFile(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise CorruptError(str(path), 0, f"it does not say which node this is: {error}") from error


def _over(data: str) -> tuple[int | None, str]:
    try:
        epoch, _, seen = Path(data, RESTORING).read_text().partition(" ")
    except FileNotFoundError:
        return None, ""
    return (int(epoch), seen) if epoch.isdecimal() else (-1, "")


def decide(facts: Facts, held: Held | None, data: str, store: str) -> Standing:
    """What the node of a data folder begins as, when it is known what the store has.

    Args:
        facts: what is in the folder.
        held: what is known of the tier; None for an empty store.
        data: the folder, for people.
        store: the same.

    Raises:
        NotOursError: it is another store, or empty, and the node has joined a cluster.
        RestoreError: the folder cannot be used.
    """
    if held is None:
        if facts.tier or facts.is_scratch or facts.over is not None:
            raise NotOursError(
                f"the tier {store} is empty, and the data folder {data} is that of a node of the "
                f"cluster {facts.tier or UNKNOWN_TIER}: is it mounted, and is its address right? "
                "The node waits until its cluster is there, and begins no other"
            )
        return Standing.LEADS
    cluster = held.cluster
    is_ours = facts.writer == cluster.writer
    if facts.tier not in ("", UNKNOWN_TIER, cluster.tier):
        raise NotOursError(
            f"the tier {store} is that of the cluster {cluster.tier}, and the data folder {data} "
            f"that of a node of {facts.tier}: is the address right? The node waits until its own "
            "is there"
        )
    if held.earlier is not None:
        if is_ours and not facts.is_scratch:
            return Standing.LEADS
        raise RestoreError(
            f"the tier {store} is of an earlier version: start the server that writes with this "
            "version first"
        )
    if facts.over is not None:
        is_valid = is_ours or facts.over == cluster.epoch
        return Standing.TAKES_OVER if is_valid else Standing.STANDS_BY
    if is_ours and facts.has_catalog and not facts.is_scratch:
        return Standing.LEADS
    if facts.has_streams and not facts.is_scratch and facts.tier != cluster.tier:
        raise RestoreError(
            f"the data folder {data} has streams that were never in the tier {store}, which "
            "belongs to other servers: choose an empty folder with --data, or another prefix"
        )
    return Standing.STANDS_BY


def note_node(data: str, node: str, tier: str, start: str) -> None:
    """Write down which node this is; on the device when this returns.

    Raises:
        StorageError: the system refused.
    """
    disk = OsDisk()
    parts = disk.boot(), _place(data)
    file = NodeFile(node=node, tier=tier, start=start, boot=parts[0], place=parts[1])
    content = json.dumps(asdict(file)).encode() + b"\n"
    replace_file(disk, str(Path(data, NODE_FILE)), content).close()
    disk.sync_folder(data)


def be_another(data: str, facts: Facts) -> Facts:
    """Have the folder of another node, which may be there still, be that of a new server.

    Raises:
        StorageError: the system refused.
    """
    OsDisk().remove(str(Path(data, IDENTITY_FILE)))
    return replace(facts, writer="", file=None)


def note_takeover(data: str, epoch: int, seen: str) -> None:
    """Have the next start take over the claim of an epoch; on the device when this returns.

    It does if it sees the same of the leader: else that has gone on meanwhile.

    Raises:
        StorageError: the system refused.
    """
    disk = OsDisk()
    replace_file(disk, str(Path(data, RESTORING)), f"{epoch} {seen}".encode()).close()
    disk.sync_folder(data)


def be_replaced(data: str) -> None:
    """What is in the folder of a standby may be replaced: it is noted whose claim is taken over.

    Raises:
        StorageError: the system refused.
    """
    disk = OsDisk()
    for name in SCRATCH_FOLDERS:
        if Path(data, name).exists():
            disk.remove_folder(str(Path(data, name)))
    disk.remove(str(Path(data, SCRATCH)))
    disk.sync_folder(data)


def stand_down(data: str) -> None:
    """Make a folder that of a standby, whatever it was; what it has of its own is set aside.

    It may end anywhere, and is begun again by the next start.

    Raises:
        StorageError: the system refused.
        OSError: the same.
    """
    disk, scratch = OsDisk(), Path(data, SCRATCH)
    is_half_made = Path(data, RESTORING).exists()  # all that is there is in the store
    if not (scratch.exists() or is_half_made):
        _set_aside(data)
    if not scratch.exists():
        disk.create(str(scratch)).close()
    disk.remove(str(Path(data, RESTORING)))
    disk.sync_folder(data)


def _set_aside(data: str) -> None:
    """Move the streams of an earlier leader, and its catalog, out of the way."""
    names = [STREAMS, *(CATALOG_FILE + suffix for suffix in SQLITE_SUFFIXES)]
    there = [name for name in names if Path(data, name).exists()]
    if not there:
        return
    begun = [one for one in Path(data, EARLIER).glob("*") if not Path(one, STREAMS).exists()]
    folder = begun[0] if begun else Path(data, EARLIER, uuid4().hex[:8])
    folder.mkdir(parents=True, exist_ok=True)
    for name in reversed(there):  # streams last: while they are there, they are to be moved
        Path(data, name).rename(folder / name)
    for changed in (folder, folder.parent, Path(data)):
        OsDisk().sync_folder(str(changed))
