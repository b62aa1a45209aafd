"""The identity of this server and its number of starts: `tier.json` in the data folder.

The identity is random, and as old as the data folder. The epoch is one more with each start,
whether there is a tier or not, and stands in the headers of chunks; so of two chunks with the same
offset, of two servers or after a restored backup, one can tell which was written later.

It says, too, which tier the server has: a data folder that had one never begins another by itself,
see claims.py.
"""

import json
import os
from pathlib import Path, PurePath
from typing import NamedTuple

from segments.atomic_write import replace_file
from segments.checkpoint import CHECKPOINT_NAME, read_checkpoint
from segments.disk import Disk, OsDisk
from segments.errors import CorruptError, SegmentsError
from segments.marks import STORED
from segments.store.local_copy import MANIFEST_FILE

IDENTITY_FILE = "tier.json"
# Of a tier whose id is not known: the streams in the folder were stored before it was written down.
UNKNOWN_TIER = "unknown"
_HEX_DIGITS = 16


class Identity(NamedTuple):
    """A server in one of its lives.

    Attributes:
        name: of the server: 16 hexadecimal digits.
        start: random, of this process: 16 hexadecimal digits.
        tier: id of the tier that it had last, or UNKNOWN_TIER; empty for one that never had any.
        claimed, revision: epoch with which it has taken that one, and revision of the object that
            says so, as far as is known: what the store has is never from before.
        node: its name in a cluster; empty where it is in none.
    """

    name: str
    epoch: int
    start: str
    tier: str = ""
    claimed: int = 0
    revision: int = 0
    node: str = ""

    def is_overtaken_by(self, writer: str, epoch: int) -> bool:
        """Whether what a server has written in an epoch says that the tier is not this one's."""
        return epoch > self.epoch or (epoch == self.epoch and writer != self.name)


def random_name() -> str:
    """16 hexadecimal digits that nobody else has."""
    return os.urandom(_HEX_DIGITS // 2).hex()


def begin_epoch(data: str, disk: Disk | None = None, node: str = "") -> Identity:
    """Begin an epoch of the server of a data folder; it is on the device when this returns.

    `node` is its name in a cluster.

    Raises:
        CorruptError: the file is damaged.
        StorageError: the system refused.
    """
    disk = disk or OsDisk()
    known = known_identity(data, disk)
    if known is None:
        known = Identity(random_name(), _highest_epoch(data, disk), "", _earlier_tier(data))
    identity = known._replace(epoch=known.epoch + 1, start=random_name(), node=node)
    keep_epoch(data, identity, disk)
    return identity


def known_identity(data: str, disk: Disk | None = None) -> Identity | None:
    """The server of a data folder in its last life; None for a folder without one.

    Raises:
        CorruptError: the file is damaged.
        StorageError: the system refused.
    """
    disk = disk or OsDisk()
    return _read(data, disk) if IDENTITY_FILE in disk.list(data) else None


def keep_epoch(data: str, identity: Identity, disk: Disk | None = None) -> None:
    """Write down a server's epoch; on the device when this returns.

    Raises:
        StorageError: the system refused; the old one stays.
    """
    disk = disk or OsDisk()
    content = json.dumps(
        {
            "version": 1,
            "identity": identity.name,
            "epoch": identity.epoch,
            "tier": identity.tier,
            "claimed": identity.claimed,
            "revision": identity.revision,
        }
    )
    replace_file(disk, str(PurePath(data, IDENTITY_FILE)), f"{content}\n".encode()).close()
    disk.sync_folder(data)


def _read(data: str, disk: Disk) -> Identity:
    path = str(PurePath(data, IDENTITY_FILE))
    file = disk.open(path, writable=False)
    try:
        content = file.read(file.size(), 0)
    finally:
        file.close()
    try:
        found = json.loads(content)
        if found["version"] != 1:
            raise CorruptError(path, 0, f"its version is {found['version']!r}, expected 1")
        name, epoch = str(found["identity"]), int(found["epoch"])
        if "tier" not in found:
            return Identity(name, epoch, "", _earlier_tier(data))
        claimed, revision = int(found["claimed"]), int(found.get("revision", 0))
        return Identity(name, epoch, "", str(found["tier"]), claimed, revision)
    except (ValueError, KeyError, TypeError) as error:
        advice = (
            "restore it from a backup, or remove it and start with --restore if there is a tier"
        )
        raise CorruptError(path, 0, f"it does not say who this server is; {advice}") from error


def _earlier_tier(data: str) -> str:
    """The tier that streams of a data folder of an earlier version have been in, if any."""
    marks = Path(data, "streams").glob(f"*/*/{STORED}*")
    copies = Path(data, "streams").glob(f"*/*/{MANIFEST_FILE}")
    has_stored = any(True for found in (marks, copies) for _ in found)
    return UNKNOWN_TIER if has_stored else ""


def _highest_epoch(data: str, disk: Disk) -> int:
    """The highest epoch of all streams, in a data folder of an earlier version."""
    highest = 0
    for path in Path(data, "streams").glob(f"*/*/{CHECKPOINT_NAME}"):
        try:
            highest = max(highest, read_checkpoint(disk, str(path.parent)).epoch)
        except SegmentsError:
            continue  # opening the log says so, and its epoch is never below that of its chunks
    return highest
