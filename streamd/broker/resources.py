"""What all virtual hosts of a server have in common."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from segments.recovery.tail import Tail
from segments.stored_part import Marks
from streamd.broker.catalog.writer import CatalogWriter
from streamd.broker.disk_floor import DiskFloor
from streamd.broker.read_only import ReadOnly
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.streams.flusher import Flusher
from streamd.broker.streams.indexer import Indexer
from streamd.broker.streams.key_indexer import KeyIndexer
from streamd.broker.streams.log_keeper import LogKeeper
from streamd.broker.streams.publication import Remote
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier.tier import Tier
from streamd.broker.traffic import Traffic
from streamd.net.rounds import Rounds
from streamd.operations.argument_kinds import Value
from streamd.operations.arguments import Arguments
from streamd.operations.cluster import LeaderFacts
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name


class StreamQuota:
    """How many streams there are in all virtual hosts, and the limit on that.

    Attributes:
        used: how many there are.
        placed: how many of them were placed at a node, by its name.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self.placed: Counter[str] = Counter()

    def check(self, wanted: int) -> None:
        """Raise Refused unless that many more streams can be created."""
        if self.used + wanted > self._limit:
            details = (
                f"cannot create {wanted:,} more: there are {self.used:,} streams, and the setting "
                f"max_streams is {self._limit:,}"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)

    def count_new(self, shard: str) -> None:
        """A stream was created; `shard` is empty where it was placed nowhere."""
        self.used += 1
        if shard:
            self.placed[shard] += 1

    def count_gone(self, shard: str) -> None:
        """A stream is gone."""
        self.used -= 1
        if shard:
            self.placed[shard] -= 1
            if not self.placed[shard]:
                del self.placed[shard]


def _no_epoch() -> None:
    """Nobody counts the starts of this server."""


class Following(NamedTuple):
    """What a store has to follow what is in a folder.

    Attributes:
        chunks: gives them.
        marks: that these and those before them have.
    """

    chunks: Tail
    marks: Marks


class FolderSource(Protocol):
    """Makes the folders of streams that another server writes."""

    @property
    def read_only(self) -> ReadOnly:
        """Says how changes are refused here."""

    def remote(self, virtual_host: Name, name: Name) -> Remote | None:
        """What publishes to a stream that another node leads; None where nothing does."""

    async def make_folder(self, virtual_host: Name, name: Name, folder: str) -> Following | None:
        """Make a stream's folder, so that its log can be opened; what is to follow what is there.

        Raises:
            SegmentsError: it cannot be done now.
        """


class Shards(Protocol):
    """Where streams are that were placed at a node, see nodes/shards.py.

    Attributes:
        remote: gives what publishes to a stream of a virtual host and a shard.
        have_node_read: returns when another node knows what is declared by now.
    """

    def node(self, shard: str) -> LeaderFacts | None:
        """Who leads a shard; None where this node does, one without a name while nobody does."""

    remote: Callable[[Name, Name, str], Remote | None]
    have_node_read: Callable[[LeaderFacts], Awaitable[None]]

    async def have_read(self) -> None:
        """Return when all nodes know what is declared by now, if that is soon."""

    def look_soon(self) -> None:
        """A shard may have another leader by now."""

    async def led_soon(self, shards: Collection[str]) -> None:
        """Return when somebody leads each of some shards, as far as is known, if that is soon."""

    def others(self) -> list[LeaderFacts]:
        """Other nodes that lead something here."""

    def nodes(self) -> list[LeaderFacts]:
        """All other nodes that are there."""

    def facts(self, node: str) -> LeaderFacts | None:
        """Another node, one without a name where it is not there; None for this one."""

    async def move_here(self, shard: str) -> None:
        """Lead a shard, whoever does now; on return this node does.

        Raises:
            Refused: there is no such shard, or it takes long.
        """

    @property
    def has_streams(self) -> bool:
        """Some stream was placed at a node."""

    def use(self, base: "ServerResources") -> None:
        """What streams of this node work with that were placed nowhere."""

    def resources(self, shard: str) -> "ServerResources":
        """What the streams of a shard have, instead of what the others have."""

    async def know_nodes(self) -> None:
        """Return when all nodes are known that there are now, if that is soon; see `place`."""

    def place(self, arguments: Arguments, beside: Counter[str]) -> str:
        """The shard of a stream that is declared with these arguments; empty for none.

        Args:
            arguments: of the stream.
            beside: how many the same change places, by shard.
        """


class ServerResources(NamedTuple):
    """What all virtual hosts of a server have in common.

    Attributes:
        catalog: changes the catalog of that folder.
        keeper: closes logs that nobody needs.
        now_ms: the wall clock.
        indexer: builds the filter indexes of segments.
        keys: keeps their key indexes.
        flusher: flushes what streams write.
        rounds: streams write at the end of each.
        quota: limits the number of streams.
        follower: makes the folders of streams that another server writes; None where this one does.
        fetcher: fetches what is read of cold segments; None where nothing is cold.
        has_tier: sealed segments go to a tier.
        tier: where those go; None without one.
        epoch: of what is appended to logs from now on; None for one that no chunk has.
        floor: how much of the disk is to stay free; None for nothing.
        retention: arguments of streams that do not declare these.
        shards: where streams are that were placed at a node; None where none can be.
        is_scratch: what has no folder here yet has none anywhere: all that counts is in a tier.
    """

    data: str
    catalog: CatalogWriter
    supervisor: Supervisor
    keeper: LogKeeper
    now_ms: Callable[[], int]
    indexer: Indexer
    keys: KeyIndexer
    flusher: Flusher
    rounds: Rounds
    quota: StreamQuota
    traffic: Traffic
    fetcher: Fetcher | None = None
    has_tier: bool = False
    epoch: Callable[[], int | None] = _no_epoch
    tier: Tier | None = None
    follower: FolderSource | None = None
    floor: DiskFloor | None = None
    retention: Mapping[str, Value] = MappingProxyType({})
    shards: Shards | None = None
    is_scratch: bool = False

    def of(self, shard: str) -> "ServerResources":
        """Those of the streams of a shard; an empty one is that of all that were placed nowhere."""
        return self if self.shards is None or not shard else self.shards.resources(shard)
