"""From the arguments of basic.consume to what the consumer gets: a start, a matcher, a choice.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_stream_queue.erl. Additions of this server:
`x-stream-sql` and `x-stream-tags`; and messages with another filter value than those asked for are
not delivered.
"""

from collections.abc import Callable, Iterator, Mapping

from segments import NEXT, ChunkMatcher, OffsetSpec, at_offset, at_time
from segments.selector import Selector, SelectorError, parse_sql, parse_tags
from streamd.broker.declared.checks import check_asked
from streamd.connections.consumer_choice import ConsumerArguments, start_named, wanted_of
from streamd.operations.arguments import Arguments
from streamd.operations.errors import Refused
from streamd.wire.amqp091.errors import MAX_SHORT_TEXT, precondition_failed
from streamd.wire.amqp091.values import INTEGER_TAGS, Field, Table

OFFSET, FILTER, UNFILTERED = "x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"
SQL, TAGS = "x-stream-sql", "x-stream-tags"
_PREFIX = "x-stream-"
_KNOWN = (OFFSET, FILTER, UNFILTERED, SQL, TAGS)
_YES, _TEXT = Field("t", True), Field("S", b"")
FOREIGN = ("x-priority", "x-consumer-timeout")


def read_offset(field: Field | None, now_ms: int) -> OffsetSpec:
    """Where to begin.

    Raises:
        ChannelFault: it is not a valid place.
    """
    if field is None:
        return NEXT
    tag, value = field
    if tag in INTEGER_TAGS and value >= 0:
        return at_offset(value)
    if tag == "T":
        return at_time(min(value * 1000, (1 << 63) - 1))
    if tag == "S":
        named = start_named(value.decode(errors="replace"), now_ms)
        if named is not None:
            return named
    shown = value.decode(errors="replace")[:40] if isinstance(value, bytes) else value
    raise precondition_failed(
        f"{OFFSET} is {shown!r} (type {tag}); expected first, last, next, an offset from 0 on, a "
        "timestamp, or an interval as in 1h"
    )


def read_wanted(
    arguments: Table, start: OffsetSpec, declared: Arguments, now_ms: Callable[[], int]
) -> ConsumerArguments:
    """Which chunks and messages; see `wanted_of`.

    Raises:
        ChannelFault: a filter or a selector cannot be used.
    """
    return wanted_of(start, _filter(arguments), _selector(arguments), declared, now_ms)


def ignored(arguments: Table) -> Iterator[str]:
    """Warnings about arguments that are ignored, as in RabbitMQ, but were probably meant."""
    for name in arguments:
        if name.startswith(_PREFIX) and name not in _KNOWN:
            known = ", ".join(_KNOWN)
            yield f"the argument {name[:40]!r} is ignored; those of consumers are {known}"
    field = arguments.get(FILTER)
    fields = field.value if field is not None and field.tag == "A" else [field or _TEXT]
    for tag in sorted({item.tag for item in fields} - {"S"}):
        yield f"{FILTER} has a value of type {tag}, which is ignored; expected strings"
    tag = arguments.get(UNFILTERED, _YES).tag
    if tag != _YES.tag:
        yield f"{UNFILTERED} is of type {tag}, which counts as false; expected a boolean"


def _filter(arguments: Table) -> ChunkMatcher | None:
    field = arguments.get(FILTER)
    if field is None or field.tag not in "SA":
        return None
    fields = field.value if field.tag == "A" else [field]
    values = [item.value for item in fields if item.tag == "S"]
    if not values or not all(values):
        raise precondition_failed(
            f"{FILTER} has no filter value, or an empty one; expected a string or an array of them"
        )
    try:
        check_asked(values)
    except Refused as refused:
        raise precondition_failed(refused.details) from refused
    return ChunkMatcher(values, match_unfiltered=arguments.get(UNFILTERED) == _YES)


def _selector(arguments: Table) -> Selector | None:
    given = [name for name in (SQL, TAGS) if name in arguments]
    if not given:
        return None
    if len(given) > 1:
        raise precondition_failed(f"{SQL} and {TAGS} exclude each other; give one of them")
    (name,) = given
    field = arguments[name]
    try:
        text = field.value.decode() if field.tag == "S" else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        raise precondition_failed(f"{name} is not a UTF-8 string; expected a selector")
    try:
        return parse_sql(text) if name == SQL else parse_tags(text)
    except SelectorError as error:
        raise precondition_failed(_shortened(name, error)) from error


_CODE_BYTES = len("PRECONDITION_FAILED - ")


def _shortened(name: str, error: SelectorError) -> str:
    """The message with its caret, cut so that it fits into the text of a close."""
    room = MAX_SHORT_TEXT - _CODE_BYTES
    whole = f"{name}: {error}"
    if len(whole.encode()) <= room:
        return whole
    head, shown, caret = whole.rsplit("\n", 2)
    at = len(caret) - len(caret.lstrip())
    first = max(2, at - 20)
    shown = "  " + shown[first : first + 40]
    caret = "  " + caret[first : first + 40]
    left = room - len(f"\n{shown}\n{caret}".encode()) - len("…".encode())
    cut = head.encode()[:left].decode(errors="ignore")
    return f"{cut if cut == head else cut + '…'}\n{shown}\n{caret}"


def shown_arguments(arguments: Table) -> Mapping[str, str]:
    """The arguments for people."""
    return {name: _shown(field) for name, field in arguments.items()}


def _shown(field: Field) -> str:
    if isinstance(field.value, bytes):
        return field.value.decode(errors="replace")
    if field.tag == "A":
        return ", ".join(map(_shown, field.value))
    return str(field.value)
