"""Heartbeats of the servers that share a store: `v1/~nodes/<node>`.

Each node of a cluster replaces its own object every few seconds, by compare-and-set. It says what
the node does, and where its clients reach it. Who leads is not decided here but in the log of
metadata (metadata_log.py), whose last claim names the node; whether that one is still there, the
others see by its heartbeat (streamd/broker/nodes/watch.py).

An object is a line of JSON, and a line with the CRC-32 of it. Calls block.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import NamedTuple

from segments.checksum import crc32
from segments.errors import FormatError
from segments.store import fields
from segments.store.object_names import NODES_FOLDER, node_key
from segments.store.object_store import MissingError, ObjectStore

_logger = logging.getLogger(__name__)

HEARTBEAT_VERSION = 1
_FORMAT = "streamd-node"


class NodeRole(StrEnum):
    """What a node does."""

    STARTING = "starting"
    LEADER = "leader"
    STANDBY = "standby"
    LEFT = "left"  # in order: nobody waits for it


class NodeAddress(NamedTuple):
    """Where clients reach a node: a host, and a port."""

    host: fields.Text
    port: fields.Number

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a node says of itself.

    Attributes:
        tier: the id of the tier that it is a node of.
        node: its name.
        writer: the identity of its data folder, as in the log's entries.
        start: random, of its process.
        counter: one more each time.
        interval_ms: from one to the next.
        role: what it does.
        since_ms: since when, in ms since 1970, by its clock.
        epoch: with which it has claimed the tier; 0 of one that does not lead.
        revision: of the log, up to which it has applied it.
        addresses: by the names of listeners, as stream, stream/ssl, amqp and http.
        certificate: SHA-256 of the one that it shows inside TLS, in hex; "-" without TLS.
        shards: which it leads, and with which epochs.
        program: its version.
    """

    tier: fields.Text
    node: fields.Node
    writer: fields.Text
    start: fields.Text
    counter: fields.Number
    interval_ms: fields.Number
    role: NodeRole
    since_ms: fields.TimeMs
    epoch: fields.Number = 0
    revision: fields.Number = 0
    addresses: Mapping[fields.Text, NodeAddress] = field(default_factory=dict)
    certificate: fields.Text = "-"
    shards: Mapping[fields.Node, fields.Number] = field(default_factory=dict)
    program: fields.Text = "-"

    @property
    def key(self) -> str:
        """The key of the object."""
        return node_key(self.node)

    @property
    def stream_address(self) -> NodeAddress | None:
        """Where clients of the stream protocol reach it; None for nowhere."""
        return reached_at(self.addresses)


def reached_at(addresses: Mapping[str, NodeAddress]) -> NodeAddress | None:
    """Where clients of the stream protocol reach a node; None for nowhere."""
    return addresses.get("stream") or addresses.get("stream/ssl")


class FoundHeartbeat(NamedTuple):
    """A heartbeat as it was read; None for one that is damaged, or of a later version."""

    heartbeat: Heartbeat | None
    etag: str


_read = fields.reader(Heartbeat)


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """The content of the object."""
    line = {"format": _FORMAT, "version": HEARTBEAT_VERSION, **asdict(heartbeat)}
    text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return text + f'{{"crc32":{crc32(text)}}}\n'.encode()


def decode_heartbeat(key: str, content: bytes) -> Heartbeat:
    """What the object says.

    Raises:
        VersionError: a later version of this program wrote it.
        FormatError: it is not one, is damaged, or another one than its key says.
    """
    first, separator, last = content.partition(b"\n")
    fields.check(first, last, first + separator, _FORMAT, HEARTBEAT_VERSION)
    found = _read(first)
    if found.key != key:
        raise FormatError(f"it is that of the node {found.node}")
    return found


def read_heartbeat(store: ObjectStore, node: str) -> FoundHeartbeat | None:
    """The heartbeat of a node; None where there is none.

    Raises:
        TierError: the store is away.
    """
    key = node_key(node)
    try:
        found = store.get(key)
    except MissingError:
        return None
    try:
        return FoundHeartbeat(decode_heartbeat(key, found.content), found.etag)
    except FormatError as error:
        _logger.debug("the heartbeat %s cannot be read: %s", key, error)
        return FoundHeartbeat(None, found.etag)


class ListedNode(NamedTuple):
    """A node, and what its heartbeat says.

    Attributes:
        node: its name.
        modified_ms: when it was written last, in ms since 1970, by the store's clock.
        heartbeat: None for one that cannot be used.
    """

    node: str
    modified_ms: int
    heartbeat: Heartbeat | None


def list_nodes(store: ObjectStore) -> Iterator[ListedNode]:
    """All nodes that there are or were, and what they say.

    Raises:
        TierError: the store is away.
    """
    for one in store.listing(NODES_FOLDER):
        node = one.key.removeprefix(f"{NODES_FOLDER}/")
        found = read_heartbeat(store, node)
        if found is not None:
            yield ListedNode(node, one.modified_ms, found.heartbeat)
