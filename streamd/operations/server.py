"""The server as a whole."""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from streamd.net.actor import Happened
from streamd.net.transport import Address
from streamd.operations.cluster import NodeFacts
from streamd.operations.declaration import Operation
from streamd.operations.names import Name

NODE = "streamd@localhost"  # the only one; clients expect a name
BEHIND_SECONDS = 300  # a consumer that is further behind is trouble; for cli/alerts.yaml too


class Moment(NamedTuple):
    """The server over a few seconds.

    Attributes:
        at_ms: when they ended, in ms since 1970.
        messages_in, messages_out: per second: stored, and sent to consumers.
        bytes_in, bytes_out: the same in bytes.
        confirm_p50, confirm_p99: seconds from arrival to confirm of half of the messages, and of 99
            in 100; None when none was confirmed.
        loop_delay: the longest delay of the event loop that was seen, in seconds.
    """

    at_ms: int
    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float
    confirm_p50: float | None
    confirm_p99: float | None
    loop_delay: float


class Totals(msgspec.Struct, frozen=True):
    """How many things there are, as far as a user may see them."""

    streams: int = 0
    messages: int = 0
    size: int = 0
    exchanges: int = 0
    connections: int = 0
    publishers: int = 0
    consumers: int = 0


class TroubleKind(StrEnum):
    """What a trouble is about."""

    DISK = "disk"
    FLOOR = "floor"
    DOOR = "door"
    TIER = "tier"
    CONFIRMS = "confirms"
    FILES = "files"
    CLOCK = "clock"
    FAULTS = "faults"
    STREAM = "stream"
    DAMAGE = "damage"
    BEHIND = "behind"


class Trouble(msgspec.Struct, frozen=True):
    """Something that somebody has to look at now.

    Attributes:
        kind: see there.
        what: one sentence, without a full stop.
        vhost, stream: of the stream that it is about; empty for the server.
        who: the consumer that it is about; empty for none.
    """

    kind: TroubleKind
    what: str
    vhost: str = ""
    stream: str = ""
    who: str = ""


class DoorFacts(NamedTuple):
    """A process beside that of the streams.

    Attributes:
        name: what it serves, for people.
        is_up: it is there.
        starts: how often it was started.
        since_ms: when it came, or went, last; in ms since 1970.
    """

    name: str
    is_up: bool
    starts: int
    since_ms: int


class StreamTrouble(msgspec.Struct, frozen=True):
    """What is wrong with a stream.

    Attributes:
        reason: why it takes no messages; empty where it does.
        lost: messages that are damaged.
    """

    vhost: Name
    stream: Name
    reason: str
    lost: int


class Behind(NamedTuple):
    """A consumer that has not read everything."""

    seconds: float
    messages: int
    who: str
    vhost: str
    stream: str


class ServerFacts(msgspec.Struct, frozen=True):
    """For who may look at everything.

    Attributes:
        pid: of the process with the streams.
        started_ms: when it was started, in ms since 1970.
        uptime: seconds since then.
        memory: bytes that it holds.
        files, max_files: open now; None where the system does not say.
        disk_free, disk_total: of the data folder, in bytes.
        disk_floor: bytes that are to stay free; publishers wait while there are fewer.
        faults: of background tasks that have failed within the last hour, by what they do: how
            often since the start.
        listeners: protocol and address of every open port.
        doors: processes beside this one.
        tier: of the object store: "off", or how it does; see TierState.
        recent: warnings and changes that the log has of the last hour, oldest first.
        history: the last hour.
    """

    pid: int
    started_ms: int
    uptime: float
    memory: int
    files: int | None
    max_files: int
    disk_free: int
    disk_total: int
    disk_floor: int
    faults: dict[str, int]
    listeners: list[tuple[str, Address]]
    doors: list[DoorFacts]
    tier: str
    recent: list[Happened]
    history: list[Moment]


class Overview(msgspec.Struct, frozen=True):
    """The server at a glance, as far as a user may see it.

    Attributes:
        wrong: everything that somebody has to look at now, the server first; empty: all is well.
        troubles: streams with something wrong.
        has_alarms: some stream takes no messages, one that the user may not see perhaps.
        has_looked: each stream has been opened since the start, or could not be.
        is_read_only: it only reads what another server writes.
        node: that it is of a cluster; None where it is in none.
        behind: consumers that are furthest behind.
        server: None for who may not look at everything.
    """

    totals: Totals
    wrong: list[Trouble]
    troubles: list[StreamTrouble]
    has_alarms: bool
    has_looked: bool
    is_read_only: bool
    node: NodeFacts | None
    behind: list[Behind]
    server: ServerFacts | None


class GetOverview(Operation[Overview], frozen=True, kw_only=True):
    """The server at a glance."""

    NAME = "overview.get"
    SHOWS_FIGURES = True


class Health(msgspec.Struct, frozen=True):
    """Whether all is well with the streams; names none, and no reason in words of the disk.

    Attributes:
        trouble: empty if it is.
        role: of this node of a cluster; empty for a server that is in none.
        ports: on which somebody listens, by protocol.
    """

    trouble: str
    role: str
    ports: dict[str, int]


class GetHealth(Operation[Health], frozen=True, kw_only=True):
    """Whether all streams have been opened since the start, and accept messages."""

    NAME = "health.get"
