"""The arguments that a stream is declared with: what each is, over every door, and reading them.

`ARGUMENTS` is the one table; the command line, AMQP, the forms of the console and the documentation
take names, types and words from it. A further argument is a row there, and a field of `LogPolicy`
that `policy_of` fills.

Values arrive as strings. Valid ones are kept so that the same declaration made twice compares
equal however it was written (`60m` and `1h`), while an age is shown as it was declared; arguments
that this server does not know are ignored, as RabbitMQ ignores them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from segments.policy import (
    BUSY_CHUNK_RECORDS,
    DEFAULT_CHUNK_BYTES,
    DEFAULT_LOCAL_BYTES,
    DEFAULT_SEGMENT_BYTES,
    DEFAULT_TIER_SEGMENT_BYTES,
    IDLE_CHUNK_RECORDS,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_RECORDS,
    MAX_SEGMENT_BYTES,
    LogPolicy,
)
from segments.selector import MAX_PROPERTY_BYTES, names_in
from streamd.operations import argument_kinds as kinds
from streamd.operations.argument_kinds import AUTO, Age, Kind, Plain, Value
from streamd.operations.errors import Reason, Refused

Arguments: TypeAlias = dict[str, Value]

STRICT, LENIENT = "strict", "lenient"
LOCAL, STORE = "local", "store"
DEFAULT_ERROR_RATE = 0.01

MAX_FILTER_PROPERTIES = 4  # each costs every message, and bits of every filter
MAX_KEY_PROPERTIES = 8
_MAX_FURTHER_BYTES = 200  # of one that stands in keys, which must not be cut
_MAX_BYTES = 1 << 62
_MAX_WAIT_MS = 500
CLIENT_LOCAL, BALANCED = "client-local", "balanced"
_LOCATORS = (CLIENT_LOCAL, BALANCED, "random", "least-leaders", "min-masters")

FILTER_SIZE = "stream-filter-size-bytes"
FILTER_HISTORY = "stream-filter-history"
FILTER_PROPERTY = "stream-filter-property"
FILTER_CONTRACT = "stream-filter-contract"
FILTER_DERIVE = "stream-filter-derive"
MAX_LENGTH = "max-length-bytes"
MAX_AGE = "max-age"
SEGMENT_SIZE = "stream-max-segment-size-bytes"
ERROR_RATE = "stream-filter-error-rate"
CHUNK_RECORDS = "stream-chunk-max-records"
CHUNK_BYTES = "stream-chunk-max-bytes"
CHUNK_WAIT = "stream-chunk-max-wait-ms"
KEY_PROPERTIES = "stream-key-properties"
TIER = "stream-tier"
CONFIRM = "stream-confirm"
LOCAL_LENGTH = "stream-local-max-length-bytes"
LOCAL_AGE = "stream-local-max-age"
LOCATOR = "queue-leader-locator"
# Kept with a stream in a cluster, and declared by nobody: the node that it was placed at, and what
# tells it from others of its name that were placed there.
SHARD, SHARD_LIFE = "stream-shard", "stream-life"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a stream.

    Attributes:
        name: in the stream protocol; over AMQP and HTTP `x-` stands before it.
        meaning: what it does, in Markdown, without a full stop.
        default: what holds without it, in Markdown.
        changes: it can be changed while the stream exists, from the next chunk on.
        needs: another argument; a declaration without that is refused, if this one cannot be
            changed.
        option: on the command line; empty where there is none.
        heading: in forms; empty where it is in none.
        example: what the field shows while it is empty.
    """

    name: str
    kind: Kind
    meaning: str
    default: str = "none"
    changes: bool = True
    needs: str = ""
    option: str = ""
    heading: str = ""
    title: str = ""
    example: str = ""


_KEPT, _IN_TIER, _FILTERS, _KEYS, _CHUNKS = "How much is kept", "Tier", "Filters", "Keys", "Chunks"
_TABLE = (
    Argument(
        name=MAX_LENGTH,
        kind=kinds.size(0, _MAX_BYTES),
        meaning="The oldest segments are deleted while the stream is larger, in bytes. What is in "
        "the tier counts, and is deleted there",
        option="--max-length-bytes",
        heading=_KEPT,
        title="Size, at most",
        example="10 GB",
    ),
    Argument(
        name=MAX_AGE,
        kind=kinds.AGE,
        meaning="Segments whose newest chunk is older are deleted, those in the tier as well",
        option="--max-age",
        heading=_KEPT,
        title="Age, at most",
        example="7 d, 12 h",
    ),
    Argument(
        name=SEGMENT_SIZE,
        kind=kinds.size(1, MAX_SEGMENT_BYTES),
        meaning="A new segment is begun at this size, in bytes",
        default=f"{DEFAULT_SEGMENT_BYTES:,}; {DEFAULT_TIER_SEGMENT_BYTES:,} for a stream in the "
        "tier",
        option="--segment-size",
        heading=_KEPT,
        title="Segment size",
        example="500 MB",
    ),
    Argument(
        name=TIER,
        kind=kinds.FLAG,
        meaning="Full segments are uploaded to the tier, the object store that the setting `tier` "
        "names. Without that setting it has no effect. After `false` nothing more is uploaded",
        default="`true`",
        option="--tier",
        heading=_IN_TIER,
        title="Upload full segments",
    ),
    Argument(
        name=CONFIRM,
        kind=kinds.choice(LOCAL, STORE),
        meaning="When messages are confirmed, and consumers get them. `local`: when this machine "
        "has them, as the setting `flush` says. `store`: when the tier has them, so that nothing "
        "that was confirmed is lost with the machine; it takes a request to the object store "
        "longer, and is refused without a tier and for streams that are not in it",
        default="the setting `confirm`, which is `local`",
        option="--confirm",
        heading=_IN_TIER,
        title="Confirm when stored in",
    ),
    Argument(
        name=LOCAL_LENGTH,
        kind=kinds.size(0, _MAX_BYTES),
        meaning="The messages of the oldest segments are deleted from the local disk while those "
        "that are there take up more, in bytes. They stay in the tier, and can be read. What is "
        "not in the tier stays on the disk",
        default=f"{DEFAULT_LOCAL_BYTES:,} without a local age, else none",
        option="--local-max-length-bytes",
        heading=_IN_TIER,
        title="Local size, at most",
        example="1 GB",
    ),
    Argument(
        name=LOCAL_AGE,
        kind=kinds.AGE,
        meaning="Messages of segments whose newest chunk is older are deleted from the local disk "
        "once the tier has them",
        option="--local-max-age",
        heading=_IN_TIER,
        title="Local age, at most",
        example="1 d, 12 h",
    ),
    Argument(
        name=FILTER_PROPERTY,
        kind=kinds.properties(MAX_FILTER_PROPERTIES, _MAX_FURTHER_BYTES),
        meaning="The property whose values are the filter values; selectors choose chunks by it. "
        "An application property, or a fixed field such as `properties.subject`. With commas "
        f"between them, up to {MAX_FILTER_PROPERTIES} properties: values of the further ones are "
        "taken from each message by the server. A name with a comma is written `[a,b]`",
        changes=False,
        option="--filter-property",
        heading=_FILTERS,
        title="Filter property",
        example="region",
    ),
    Argument(
        name=FILTER_DERIVE,
        kind=kinds.SWITCH,
        meaning="The server gives messages that come without a filter value the value of the "
        "filter property, also inside sub-batches. Needs a filter property",
        default="`true` with a filter property; a stream from before that was so stays as it is",
        changes=False,
        needs=FILTER_PROPERTY,
        option="--filter-derive",
        heading=_FILTERS,
        title="Derive filter values",
    ),
    Argument(
        name=FILTER_CONTRACT,
        kind=kinds.choice(STRICT, LENIENT),
        meaning="`strict`: a message whose filter value is not the value of the filter property "
        "is refused. Needs a filter property",
        default=f"`{LENIENT}`",
        changes=False,
        needs=FILTER_PROPERTY,
        option="--filter-contract",
        heading=_FILTERS,
        title="Filter contract",
    ),
    Argument(
        name=FILTER_SIZE,
        kind=kinds.FILTER_SIZE,
        meaning="Bytes of each chunk's filter. `auto`: chunk by chunk, the smallest size that "
        "keeps false positives within the error rate",
        default=str(MIN_FILTER_SIZE),
        option="--filter-size",
        heading=_FILTERS,
        title="Filter size",
        example="64, auto",
    ),
    Argument(
        name=ERROR_RATE,
        kind=kinds.RATE,
        meaning="False positives to allow, as a share of the chunks without a wanted value. Each "
        "filter is then as small as that allows, and at most as large as the filter size",
        default=f"{DEFAULT_ERROR_RATE} with `auto`, else none",
        needs=FILTER_SIZE,
        option="--filter-error-rate",
        heading=_FILTERS,
        title="Error rate",
        example="0.01",
    ),
    Argument(
        name=FILTER_HISTORY,
        kind=kinds.FLAG,
        meaning="Each chunk lists its filter values, for the filter index and for tuning. Without "
        "them, chunks are chosen by their filters alone",
        default="`true`",
        changes=False,
        heading=_FILTERS,
        title="List filter values",
    ),
    Argument(
        name=KEY_PROPERTIES,
        kind=kinds.properties(MAX_KEY_PROPERTIES, MAX_PROPERTY_BYTES),
        meaning="Properties whose values are keys, which `streamd find` finds messages by. Each is "
        "an application property, or a fixed field such as `properties.message_id`. When they are "
        "changed, all that is on the disk is indexed anew; what only the tier has is searched "
        "without an index of the new ones",
        option="--key-property",
        heading=_KEYS,
        title="Key properties",
        example="order_id,properties.message_id",
    ),
    Argument(
        name=CHUNK_RECORDS,
        kind=kinds.whole(1, MAX_CHUNK_RECORDS),
        meaning="Messages in a chunk, at most. Smaller chunks can be skipped more often",
        default=f"{IDLE_CHUNK_RECORDS} to {BUSY_CHUNK_RECORDS:,} by load, {IDLE_CHUNK_RECORDS} "
        "with filter values",
        option="--chunk-max-records",
        heading=_CHUNKS,
        title="Messages in a chunk",
        example="100",
    ),
    Argument(
        name=CHUNK_BYTES,
        kind=kinds.size(1, MAX_CHUNK_BYTES),
        meaning="Bytes of messages in a chunk, at most; a larger message gets a chunk of its own",
        default=f"{DEFAULT_CHUNK_BYTES:,}",
        option="--chunk-max-bytes",
        heading=_CHUNKS,
        title="Bytes in a chunk",
        example="1 MB",
    ),
    Argument(
        name=CHUNK_WAIT,
        kind=kinds.whole(0, _MAX_WAIT_MS, "MS"),
        meaning="Milliseconds that a message may wait for others before its chunk is written, and "
        "it is confirmed and delivered. For streams with many publishers of few messages each; a "
        "chunk that is full does not wait",
        default="0",
        option="--chunk-max-wait-ms",
        heading=_CHUNKS,
        title="Wait for more messages, at most (ms)",
        example="20",
    ),
    *(
        Argument(
            name=f"initial-{who}-size",
            kind=kinds.whole(1, 1 << 20),
            meaning="Read and kept for RabbitMQ's clients; without effect",
            changes=False,
        )
        for who in ("cluster", "group")
    ),
    Argument(
        name=LOCATOR,
        kind=kinds.choice(*_LOCATORS),
        meaning="Which node of a cluster leads the stream, where messages are confirmed by the "
        "tier: `client-local` the one that leads the cluster; with all others the streams are "
        "spread over the nodes",
        default="the setting `leader_locator`, which is `client-local`",
        changes=False,
    ),
)
ARGUMENTS: Mapping[str, Argument] = {argument.name: argument for argument in _TABLE}
SETTINGS = frozenset(argument.name for argument in _TABLE if argument.changes)
_AGES = frozenset(argument.name for argument in _TABLE if argument.kind is kinds.AGE)


def read_argument(name: str, text: str) -> Value:
    """The value of one of `ARGUMENTS`.

    Raises:
        Refused: it cannot be read (PRECONDITION_FAILED).
    """
    try:
        return ARGUMENTS[name].kind.read(text)
    except ValueError as expected:
        details = f"{name} is {text[:40]!r}, expected {expected}"
        raise Refused(Reason.PRECONDITION_FAILED, details) from None


def as_typed(name: str, text: str) -> str:
    """The text of an argument for what somebody has typed: 7D for 7 d, digits for 10 GB."""
    return ARGUMENTS[name].kind.typed(text) if name in ARGUMENTS else text


def read_arguments(pairs: Iterable[tuple[str, str]]) -> Arguments:
    """The arguments that this server knows, by name; equal ones compare equal.

    Raises:
        Refused: a value cannot be read (PRECONDITION_FAILED).
    """
    found = {name: read_argument(name, text) for name, text in pairs if name in ARGUMENTS}
    for argument in map(ARGUMENTS.__getitem__, found):
        if argument.needs and argument.needs not in found and not argument.changes:
            details = f"{argument.name} needs {argument.needs}, which is missing"
            raise Refused(Reason.PRECONDITION_FAILED, details)
    return found


def check_confirm(arguments: Mapping[str, Value], *, has_tier: bool) -> None:
    """See that messages can be confirmed as a stream's own arguments say.

    Raises:
        Refused: they are to be confirmed by a tier that does not get them (PRECONDITION_FAILED).
    """
    if arguments.get(CONFIRM) != STORE:
        return
    obstacle = ""
    if not has_tier:
        obstacle = "this server has no tier: start it with --tier"
    elif not arguments.get(TIER, True):
        obstacle = f"{TIER} is false: the tier gets nothing of the stream"
    if obstacle:
        details = f"{CONFIRM} is {STORE}, but {obstacle}, or leave {CONFIRM} out"
        raise Refused(Reason.PRECONDITION_FAILED, details)


def as_created(arguments: Mapping[str, Value]) -> Arguments:
    """A declaration's arguments, as a stream that is created with them now keeps them.

    What a filter property means without being said is kept beside it: streams that were declared
    when it meant something else have nothing there, and stay as they are.
    """
    kept = dict(arguments)
    if FILTER_PROPERTY in kept:
        kept.setdefault(FILTER_DERIVE, True)
    return kept


def as_kept(wanted: Mapping[str, Value], existing: Mapping[str, Value]) -> Arguments:
    """A declaration's arguments as an existing stream keeps them, if it was declared with these."""
    return as_created(wanted) if FILTER_DERIVE in existing else dict(wanted)


def filter_properties(arguments: Mapping[str, Value]) -> tuple[str, ...]:
    """The names of a stream's filter properties, the first one first; none where none is declared.

    Values of the first are filter values. Those of the others the server takes from each message.
    """
    text = arguments.get(FILTER_PROPERTY)
    return () if text is None else names_in(str(text))


def read_settings(pairs: Iterable[tuple[str, str]]) -> Arguments:
    """Changes to a stream's arguments; an empty string is the default.

    Raises:
        Refused: an argument cannot be changed or read (PRECONDITION_FAILED).
    """
    given = dict(pairs)
    for name in given:
        if name not in SETTINGS:
            details = f"{name[:40]} cannot be changed; {', '.join(sorted(SETTINGS))} can"
            raise Refused(Reason.PRECONDITION_FAILED, details)
    cleared: Arguments = {name: "" for name, text in given.items() if not text}
    return cleared | read_arguments((name, text) for name, text in given.items() if text)


def plain_arguments(arguments: Mapping[str, Value]) -> dict[str, Plain]:
    """Arguments as they were declared, in values that JSON knows."""
    return {k: v.text if isinstance(v, Age) else v for k, v in arguments.items()}


def as_text(arguments: Mapping[str, Plain]) -> dict[str, str]:
    """Arguments as they are typed."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in arguments.items()
    }


def arguments_to_json(arguments: Mapping[str, Value]) -> str:
    """Arguments, or changes to them, for the catalog."""
    return json.dumps(plain_arguments(arguments))


def arguments_from_json(text: str) -> Arguments:
    """What `arguments_to_json` was given."""
    found: Arguments = json.loads(text)
    texts = {name: found[name] for name in _AGES & found.keys()}
    read = kinds.AGE.read
    return found | {k: read(text) for k, text in texts.items() if isinstance(text, str) and text}


def policy_of(arguments: Mapping[str, Value], *, has_tier: bool = False) -> LogPolicy:
    """The log policy that a stream's arguments ask for.

    Args:
        arguments: as far as they are declared.
        has_tier: the server has a tier; segments of streams in it are smaller by default.
    """

    def milliseconds(name: str) -> int | None:
        age = arguments.get(name)
        return age.seconds * 1000 if isinstance(age, Age) else None

    def number(name: str) -> int | None:
        value = arguments.get(name)
        return value if isinstance(value, int) else None

    tier = bool(arguments.get(TIER, True))
    segment_bytes = DEFAULT_TIER_SEGMENT_BYTES if has_tier and tier else DEFAULT_SEGMENT_BYTES
    is_auto = arguments.get(FILTER_SIZE) == AUTO
    keys = arguments.get(KEY_PROPERTIES)
    rate = arguments.get(ERROR_RATE, DEFAULT_ERROR_RATE if is_auto else None)
    return LogPolicy(
        max_segment_bytes=number(SEGMENT_SIZE) or segment_bytes,
        max_length_bytes=number(MAX_LENGTH),
        max_age_ms=milliseconds(MAX_AGE),
        filter_size=MAX_FILTER_SIZE if is_auto else number(FILTER_SIZE) or MIN_FILTER_SIZE,
        filter_error_rate=rate if isinstance(rate, float) else None,
        filter_history=bool(arguments.get(FILTER_HISTORY, True)),
        chunk_max_records=number(CHUNK_RECORDS),
        chunk_max_bytes=number(CHUNK_BYTES) or DEFAULT_CHUNK_BYTES,
        chunk_wait_ms=number(CHUNK_WAIT) or 0,
        key_properties=names_in(str(keys)) if keys else (),
        confirms_in_store=tier and arguments.get(CONFIRM) == STORE,
        tier=tier,
        local_max_length_bytes=number(LOCAL_LENGTH),
        local_max_age_ms=milliseconds(LOCAL_AGE),
    )
