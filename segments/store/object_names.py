"""Where things are in a store: keys below the prefix that the operator has chosen.

    v1/cluster                                                  the root of the log, written once
    v1/~log/<tier>/<revision>                                   a change of metadata
    v1/~snapshots/<tier>/<revision>.<uid>                       the catalog as of a revision
    v1/~wal/<epoch>/<slot>                                      chunks in no manifest yet
    v1/~nodes/<node>                                            replaced by its node
    v1/~secret                                                  by which nodes know each other
    v1/~shards/<node>/…                                         the same for what was placed there
    v1/<virtual host>/<stream>~<creation>/manifest              replaced by compare-and-set
    v1/<virtual host>/<stream>~<creation>/<base>.<epoch>.<uid>.segment, .index, .filter, .keys
    v1/<virtual host>/<stream>~<creation>/<next>.<epoch>.<uid>.tracking

All but manifests and heartbeats are written once, most of them under a name of their own: two
servers can leave objects that nobody refers to, but never replace each other's. Earlier versions
had copies of the catalog in `v1/catalog`. A stream that is deleted and created again has another
creation id, so it shares nothing with the one before.
"""

import re
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

VERSION = "v1"
CLUSTER = f"{VERSION}/cluster"
CATALOG_FOLDER = f"{VERSION}/catalog"
WAL_FOLDER = f"{VERSION}/~wal"  # no virtual host's folder begins with ~
LOG_FOLDER, SNAPSHOT_FOLDER = f"{VERSION}/~log", f"{VERSION}/~snapshots"
NODES_FOLDER = f"{VERSION}/~nodes"
SHARDS_FOLDER = f"{VERSION}/~shards"
SECRET = f"{VERSION}/~secret"
NO_HOSTS = frozenset(
    (CATALOG_FOLDER, WAL_FOLDER, LOG_FOLDER, SNAPSHOT_FOLDER, NODES_FOLDER, SHARDS_FOLDER)
)
MANIFEST_NAME = "manifest"
_RESERVED = frozenset(("cluster", "catalog"))  # of virtual hosts' folders
_MOST_ESCAPED = 200  # characters of a name: file systems have 255 bytes for it and its creation
_HASH_ROOM = 40  # of them, for a hash
_HASHED = re.compile(rf".{{{_MOST_ESCAPED - _HASH_ROOM}}}-[0-9a-f]{{32}}")
_SNAPSHOT = re.compile(rf"{SNAPSHOT_FOLDER}/[^/]+/([0-9]{{20}})\.[0-9a-f]{{16}}")
_OBJECT = re.compile(r"([0-9]{20})\.([0-9]+)\.([0-9a-f]{16})(\.[a-z]+)")


def _escaped(name: str) -> str:
    """A name as a part of a key: letters, digits and `._-`, the rest as %XX.

    Keys are limited to 1,024 bytes, and where they become files each part to 255; so of long names
    the beginning is there, and a hash.
    """
    found = quote(name, safe="").replace("~", "%7E").replace(".", "%2E", 1)
    if found in _RESERVED:
        found = f"%{ord(found[0]):02X}{found[1:]}"
    if len(found) > _MOST_ESCAPED or _HASHED.fullmatch(found):  # no name is another's hash
        digest = blake2b(name.encode(), digest_size=16).hexdigest()
        found = f"{found[: _MOST_ESCAPED - _HASH_ROOM]}-{digest}"
    return found


class StreamKey(NamedTuple):
    """Which stream a folder of the store is of.

    Attributes:
        virtual_host, stream: their names.
        creation: tells it from others of that name; later ones are greater.
    """

    virtual_host: str
    stream: str
    creation: str

    @property
    def folder(self) -> str:
        """Its folder, without a slash at the end."""
        host = _escaped(self.virtual_host)
        return f"{VERSION}/{host}/{_escaped(self.stream)}~{self.creation}"

    @property
    def manifest(self) -> str:
        """Key of its manifest."""
        return f"{self.folder}/{MANIFEST_NAME}"

    def object(self, offset: int, epoch: int, uid: str, suffix: str) -> str:
        """Key of an object that is written once.

        Args:
            offset: the base offset, or the one that a snapshot is as of.
            epoch: of the server that writes it.
            uid: 16 hexadecimal digits, different for each.
            suffix: what it is, as of a file.
        """
        return f"{self.folder}/{offset:020d}.{epoch}.{uid}{suffix}"


class ObjectName(NamedTuple):
    """The parts of an object's name; see `StreamKey.object`."""

    offset: int
    epoch: int
    uid: str
    suffix: str


def log_folder(tier: str) -> str:
    """The folder of a log: no two tiers have one in common."""
    return f"{LOG_FOLDER}/{quote(tier, safe='')}"


def entry_key(tier: str, revision: int) -> str:
    """The key of an entry of the log."""
    return f"{log_folder(tier)}/{revision:020d}"


def node_key(node: str) -> str:
    """The key of a node's heartbeat."""
    return f"{NODES_FOLDER}/{node}"


def shard_prefix(node: str) -> str:
    """What keys of the streams begin with that were placed at a node: a tier of their own."""
    return f"{SHARDS_FOLDER}/{node}/"


def snapshot_folder(tier: str) -> str:
    """The folder of a log's snapshots."""
    return f"{SNAPSHOT_FOLDER}/{quote(tier, safe='')}"


def snapshot_key(tier: str, revision: int, uid: str) -> str:
    """The key of a snapshot; uid is 16 hexadecimal digits, different for each."""
    return f"{snapshot_folder(tier)}/{revision:020d}.{uid}"


def snapshot_in(key: str) -> int | None:
    """The revision of a snapshot; None for any other key."""
    match = _SNAPSHOT.fullmatch(key)
    return int(match[1]) if match else None


def creation_in(folder: str) -> str:
    """The creation id in the name of a stream's folder; empty for any other folder."""
    return folder.rpartition("/")[2].rpartition("~")[2] if "~" in folder else ""


def names_in(folder: str) -> tuple[str, str] | None:
    """Virtual host and stream of a stream's folder; None where its name has a hash for one."""
    host, _, stream = folder.removeprefix(f"{VERSION}/").partition("/")
    parts = host, stream.rpartition("~")[0]
    return None if any(map(_HASHED.fullmatch, parts)) else (unquote(parts[0]), unquote(parts[1]))


def parse_object(name: str) -> ObjectName | None:
    """The parts of the last part of a key; None for any other name."""
    match = _OBJECT.fullmatch(name)
    return ObjectName(int(match[1]), int(match[2]), match[3], match[4]) if match else None
