"""The performatives of AMQP 1.0: one class for each, its fields in the order of the wire.

`codec.py` derives encoding and decoding from the annotations. A field without a default is
mandatory; a default stands for null. The table at the end gives each its code and its name.

Source: OASIS AMQP 1.0 part 2 (transport), 2.7; part 3 (messaging), 3.4 and 3.5; part 5 (security).
"""

from typing import Annotated, Any, NamedTuple, TypeAlias

from segments.amqp10 import Opaque, Symbol
from streamd.wire.amqp10.values import Exact

Ubyte: TypeAlias = Annotated[int, "ubyte"]
Ushort: TypeAlias = Annotated[int, "ushort"]
Uint: TypeAlias = Annotated[int, "uint"]
Ulong: TypeAlias = Annotated[int, "ulong"]
Boolean: TypeAlias = Annotated[bool, "boolean"]
Text: TypeAlias = Annotated[str, "string"]
Name: TypeAlias = Annotated[str, "symbol"]
Names: TypeAlias = Annotated[tuple[Symbol, ...], "symbols"]  # one, several, or null
Binary: TypeAlias = Annotated[bytes, "binary"]
Map: TypeAlias = Annotated[dict[Exact, Exact], "map"]
Raw: TypeAlias = Annotated[Opaque, "raw"]  # as it is encoded, to be sent back
Value: TypeAlias = Annotated[Exact, "value"]

MAX_UINT = (1 << 32) - 1
SENDER, RECEIVER = False, True  # roles
UNSETTLED, SETTLED, MIXED = range(3)  # snd-settle-mode
FIRST, SECOND = range(2)  # rcv-settle-mode


class Error(NamedTuple):  # noqa: D101 - see the module
    condition: Name
    description: Text | None = None
    info: Map | None = None


class Source(NamedTuple):  # noqa: D101
    address: Value | None = None
    durable: Uint = 0
    expiry_policy: Name = "session-end"
    timeout: Uint = 0
    dynamic: Boolean = False
    dynamic_node_properties: Raw | None = None
    distribution_mode: Name | None = None
    filter: Raw | None = None
    default_outcome: Raw | None = None
    outcomes: Names = ()
    capabilities: Names = ()


class Target(NamedTuple):  # noqa: D101
    address: Value | None = None
    durable: Uint = 0
    expiry_policy: Name = "session-end"
    timeout: Uint = 0
    dynamic: Boolean = False
    dynamic_node_properties: Raw | None = None
    capabilities: Names = ()


class Coordinator(NamedTuple):  # noqa: D101
    capabilities: Names = ()


class Received(NamedTuple):  # noqa: D101
    section_number: Uint
    section_offset: Ulong


class Accepted(NamedTuple):  # noqa: D101
    pass


class Rejected(NamedTuple):  # noqa: D101
    error: Annotated[Error, "composite"] | None = None


class Released(NamedTuple):  # noqa: D101
    pass


class Modified(NamedTuple):  # noqa: D101
    delivery_failed: Boolean = False
    undeliverable_here: Boolean = False
    message_annotations: Raw | None = None


Terminus: TypeAlias = Annotated[Any, "composite"]  # Source, Target or Coordinator
DeliveryState: TypeAlias = Annotated[Any, "composite"]  # or of a type that is not known
Fault: TypeAlias = Annotated[Error, "composite"]


class Open(NamedTuple):  # noqa: D101
    container_id: Text
    hostname: Text | None = None
    max_frame_size: Uint = MAX_UINT
    channel_max: Ushort = 65_535
    idle_time_out: Uint | None = None
    outgoing_locales: Names = ()
    incoming_locales: Names = ()
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Map | None = None


class Begin(NamedTuple):  # noqa: D101
    remote_channel: Ushort | None
    next_outgoing_id: Uint
    incoming_window: Uint
    outgoing_window: Uint
    handle_max: Uint = MAX_UINT
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Map | None = None


class Attach(NamedTuple):  # noqa: D101
    name: Text
    handle: Uint
    role: Boolean
    snd_settle_mode: Ubyte = MIXED
    rcv_settle_mode: Ubyte = FIRST
    source: Terminus | None = None
    target: Terminus | None = None
    unsettled: Map | None = None
    incomplete_unsettled: Boolean = False
    initial_delivery_count: Uint | None = None
    max_message_size: Ulong | None = None
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Map | None = None


class Flow(NamedTuple):  # noqa: D101
    next_incoming_id: Uint | None
    incoming_window: Uint
    next_outgoing_id: Uint
    outgoing_window: Uint
    handle: Uint | None = None
    delivery_count: Uint | None = None
    link_credit: Uint | None = None
    available: Uint | None = None
    drain: Boolean = False
    echo: Boolean = False
    properties: Raw | None = None


class Transfer(NamedTuple):  # noqa: D101
    handle: Uint
    delivery_id: Uint | None = None
    delivery_tag: Binary | None = None
    message_format: Uint | None = None
    settled: Boolean | None = None
    more: Boolean = False
    rcv_settle_mode: Ubyte | None = None
    state: DeliveryState | None = None
    resume: Boolean = False
    aborted: Boolean = False
    batchable: Boolean = False


class Disposition(NamedTuple):  # noqa: D101
    role: Boolean
    first: Uint
    last: Uint | None = None
    settled: Boolean = False
    state: DeliveryState | None = None
    batchable: Boolean = False


class Detach(NamedTuple):  # noqa: D101
    handle: Uint
    closed: Boolean = False
    error: Fault | None = None


class End(NamedTuple):  # noqa: D101
    error: Fault | None = None


class Close(NamedTuple):  # noqa: D101
    error: Fault | None = None


class SaslMechanisms(NamedTuple):  # noqa: D101
    mechanisms: Names


class SaslInit(NamedTuple):  # noqa: D101
    mechanism: Name
    initial_response: Binary | None = None
    hostname: Text | None = None

    def __repr__(self) -> str:
        return f"SaslInit({self.mechanism!r}, <secret>)"


class SaslChallenge(NamedTuple):  # noqa: D101
    challenge: Binary


class SaslResponse(NamedTuple):  # noqa: D101
    response: Binary

    def __repr__(self) -> str:
        return "SaslResponse(<secret>)"


class SaslOutcome(NamedTuple):  # noqa: D101
    code: Ubyte
    additional_data: Binary | None = None


_TABLE: tuple[tuple[int, str, type[Any]], ...] = (
    (0x10, "open", Open),
    (0x11, "begin", Begin),
    (0x12, "attach", Attach),
    (0x13, "flow", Flow),
    (0x14, "transfer", Transfer),
    (0x15, "disposition", Disposition),
    (0x16, "detach", Detach),
    (0x17, "end", End),
    (0x18, "close", Close),
    (0x1D, "error", Error),
    (0x23, "received", Received),
    (0x24, "accepted", Accepted),
    (0x25, "rejected", Rejected),
    (0x26, "released", Released),
    (0x27, "modified", Modified),
    (0x28, "source", Source),
    (0x29, "target", Target),
    (0x30, "coordinator", Coordinator),
    (0x40, "sasl-mechanisms", SaslMechanisms),
    (0x41, "sasl-init", SaslInit),
    (0x42, "sasl-challenge", SaslChallenge),
    (0x43, "sasl-response", SaslResponse),
    (0x44, "sasl-outcome", SaslOutcome),
)

BY_CODE: dict[int, type[Any]] = {code: kind for code, _, kind in _TABLE}
CODES: dict[type[Any], int] = {kind: code for code, _, kind in _TABLE}
BY_NAME: dict[str, type[Any]] = {f"amqp:{name}:list": kind for _, name, kind in _TABLE}
Performative: TypeAlias = Any  # one of the classes in the table: a tuple of what its fields are
