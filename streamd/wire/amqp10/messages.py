"""From a published message to the one that a stream keeps, and from there to a delivery.

The bare message and its footer are passed on byte for byte, both ways; what stands before it is
made anew. Messages of a publisher, and those in a stream, begin alike: what is made of a beginning
is remembered.

Source: OASIS AMQP 1.0 part 3 (messaging), 3.2; rabbitmq/rabbitmq-server,
deps/rabbit/src/mc_amqp.erl and deps/rabbit/src/rabbit_stream_queue.erl.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from segments import amqp10_codes as codes
from segments.amqp10 import (
    Symbol,
    encode_binary,
    encode_list,
    encode_map,
    encode_symbol,
    encode_text,
    find_in_list,
    section_code,
    skip_value,
)
from segments.amqp10_codes import SHORT_DESCRIPTOR, Section
from segments.errors import FormatError
from streamd.wire.amqp10.errors import Condition, LinkFault
from streamd.wire.amqp10.values import Entry, Exact, read_entries, read_value, write_value
from streamd.wire.stored_messages import (
    BODY_SECTIONS,
    CC,
    EXCHANGE,
    FILTER_VALUE,
    MAX_SECTIONS,
    OFFSET,
    ROUTING_KEY,
    some_sections,
)

_REMEMBERED_BYTES = 512  # of the beginning of a message
_MOST_START = 256  # of the beginning of a message that is as most are
_BEFORE_BARE = (Section.HEADER, Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS)
_ONCE = frozenset(Section) - {Section.DATA, Section.SEQUENCE}
_OWN = {EXCHANGE, ROUTING_KEY}
_NULL, _FALSE, _TRUE, _UINT_0 = (
    bytes((code,)) for code in (codes.NULL, codes.FALSE, codes.TRUE, codes.UINT_0)
)
_PROPERTIES, _DATA = int(Section.PROPERTIES), int(Section.DATA)  # quicker to compare
_LONG_SIZE_BIT = 0x10  # of a code: size and count have four bytes
_USER_ID, _TO = 1, 2  # of properties
_MAX_VALUE = 4_096  # bytes of a filter value
MAX_ANNOTATIONS_BYTES = 32 << 10  # with the header: each entry is looked at
MAX_PROPERTIES_BYTES = 128 << 10  # all between annotations and body
_LONG_SIZE = 8


class StoredHead(NamedTuple):
    """All of a message that stands before its bare message.

    Attributes:
        sections: header and annotations, as streams keep them.
        filter_value: empty for none.
        more_keys: the annotation x-cc; None without.
    """

    sections: bytes
    filter_value: bytes
    more_keys: Exact


class Bare(NamedTuple):
    """What the server looks at of a bare message.

    Attributes:
        properties: where the section's value is; None without.
        sections: how many there are.
        body: where its first section begins.
    """

    properties: int | None
    sections: int
    body: int


def bare_position(raw: bytes) -> int:
    """Where the bare message begins.

    Raises:
        LinkFault: a section before it cannot be read.
    """
    at = 0
    try:
        for _ in _BEFORE_BARE:  # as many as there can be
            if raw[at : at + 2] == SHORT_DESCRIPTOR and raw[at + 2] >= _PROPERTIES:  # as mostly
                return at
            code, value = _section_at(raw, at)
            if code not in _BEFORE_BARE:
                return at
            at = skip_value(raw, value)
    except (FormatError, IndexError) as error:
        raise _unreadable(str(error)) from None
    return at


def stored_head(exchange: str, key: str, before: bytes) -> StoredHead:
    """What a stream keeps before the bare message.

    Args:
        exchange: it was published to.
        key: with this routing key.
        before: the sections that came before the bare message.

    Raises:
        LinkFault: they are malformed, or something in them is not allowed.
    """
    if len(before) > MAX_ANNOTATIONS_BYTES:
        raise _unreadable(f"more than {MAX_ANNOTATIONS_BYTES:,} bytes come before its properties")
    if len(before) > _REMEMBERED_BYTES:
        return _stored_head(exchange, key, before)
    return _stored_head_again(exchange, key, before)


def _stored_head(exchange: str, key: str, before: bytes) -> StoredHead:
    header: list[Exact] = []
    entries: list[Entry] = []
    last = 0
    try:
        for code, _, at in some_sections(before):
            if code <= last:
                raise _unreadable("its sections are out of order, or one is there twice")
            last = code
            if code == Section.HEADER:
                header = _header(before, at)
            elif code == Section.MESSAGE_ANNOTATIONS:
                entries = read_entries(before, at)
    except FormatError as error:
        raise _unreadable(str(error)) from None
    kept, filter_value, more_keys = [], b"", None
    for name, entry in zip(_checked_names(entries), entries, strict=True):
        if name == FILTER_VALUE:
            filter_value = _filter_value(entry.value)
        elif name == CC:
            more_keys = entry.value
        if name not in _OWN:
            kept.append(entry.raw)
    own = _own_annotations(exchange, key)
    annotations = _map_of(b"".join([own, *kept]), 2 + len(kept))
    sections = _section(Section.HEADER, _stored_header(header)) + _section(
        Section.MESSAGE_ANNOTATIONS, annotations
    )
    return StoredHead(sections, filter_value, more_keys)


_stored_head_again = lru_cache(maxsize=2048)(_stored_head)


def _header(raw: bytes, at: int) -> list[Exact]:
    value, _ = read_value(raw, at)
    if not isinstance(value, list):
        raise FormatError("the header is no list")
    return value


def _stored_header(header: list[Exact]) -> bytes:
    """A message is durable only where its header says so, as RabbitMQ has it."""
    durable, priority, ttl = [*header, None, None, None][:3]
    first = _TRUE if durable is True else _FALSE
    return encode_list([first, write_value(priority), write_value(ttl), _TRUE, _UINT_0])


def _checked_names(entries: Sequence[Entry]) -> list[str]:
    names: list[str] = []
    for key, *_ in entries:
        if not isinstance(key, Symbol) or not key.startswith("x-"):
            raise _unreadable(f"the message annotation {str(key)[:40]!r} is reserved; expected x-…")
        names.append(key)
    if len(set(names)) < len(names):  # readers would not agree on which of them counts
        raise _unreadable("it has a message annotation twice")
    return names


def _filter_value(value: Exact) -> bytes:
    found = value.encode() if isinstance(value, str) else None
    if found is None or len(found) > _MAX_VALUE or b"\0" in found:
        raise LinkFault(
            Condition.INVALID_FIELD,
            f"{FILTER_VALUE} is {str(value)[:40]!r}, expected a string of at most {_MAX_VALUE:,} "
            "bytes without NUL",
        )
    return found


def _own_annotations(exchange: str, key: str) -> bytes:
    named = ((EXCHANGE, exchange), (ROUTING_KEY, key))
    return b"".join(
        chain.from_iterable((encode_symbol(name), encode_text(value)) for name, value in named)
    )


def _map_of(data: bytes, pairs: int) -> bytes:
    """A map of so many keys and values, encoded together."""
    return encode_map([data, *[b""] * (2 * pairs - 1)])


def check_bare(raw: bytes, at: int) -> Bare:
    """See that there is a bare message at a position; a footer may follow it.

    Raises:
        LinkFault: there is none.
    """
    usual = _usual_bare(raw, at, len(raw))
    if usual is not None:
        return usual
    properties, body, last, count, body_at = None, 0, 0, 0, at
    size, begin = len(raw), at
    try:
        while at < size:
            code, value = _section_at(raw, at)
            _check_order(code, last)
            if raw[value] not in _ALLOWED.get(code, ()):
                raise _unreadable(f"it has a section {code:#x}, or a value of another type in it")
            if code == Section.PROPERTIES:
                properties = value
            elif code in BODY_SECTIONS:
                if not body:
                    _check_before_body(at - begin)
                    body, body_at = code, at
                elif body != code:
                    raise _unreadable("it has two kinds of body")
            last, count = code, count + 1
            if count > MAX_SECTIONS:
                raise _unreadable(f"it has more than {MAX_SECTIONS:,} sections")
            at = skip_value(raw, value)
    except (FormatError, IndexError) as error:
        raise _unreadable(str(error)) from None
    return _with_body(Bare(properties, count, body_at), body)


def _usual_bare(raw: bytes, at: int, size: int) -> Bare | None:
    """As check_bare, where all is as mostly: one section of each kind, bytes or a text as the body.

    Args:
        raw: the message, or all of it but the bytes that are its body.
        at: where it begins.
        size: of the message.
    """
    properties, last, count, begin, body = None, 0, 0, at, at
    try:
        while at < size:
            code, kind = raw[at + 2], raw[at + 3]
            if raw[at : at + 2] != SHORT_DESCRIPTOR or last >= code:
                return None
            if kind not in _USUAL.get(code, ()):
                return None
            if code == _PROPERTIES:
                properties = at + 3
            elif code >= _DATA:
                body = at
                if last >= _DATA or body - begin > MAX_PROPERTIES_BYTES:
                    return None
            if kind & _LONG_SIZE_BIT:
                at += 8 + int.from_bytes(raw[at + 4 : at + 8], "big")
            else:
                at += 5 + raw[at + 4]
            last, count = code, count + 1
    except IndexError:
        return None
    return Bare(properties, count, body) if at == size and last >= _DATA else None


class Start(NamedTuple):
    """What is to be known of a message.

    Attributes:
        head: what streams keep instead of the sections before the bare message.
        at: where that begins.
        user: that the publisher claims to be; None without a claim.
    """

    head: StoredHead
    at: int
    bare: Bare
    user: bytes | None


def read_start(exchange: str, key: str, raw: bytes, at: int, bare: Bare) -> tuple[Start, int]:
    """What is to be known of a message, and the size of its beginning for `start_of`.

    That is 0 for a message of which most bytes have to be looked at.

    Args:
        exchange: it was published to.
        key: with this routing key.
        raw: the message.
        at: where the bare message begins in it.
        bare: what `check_bare` says of that.

    Raises:
        LinkFault: something in it is not allowed.
    """
    start = Start(stored_head(exchange, key, raw[:at]), at, bare, user_of(raw, bare))
    code, kind = raw[bare.body + 2 : bare.body + 4]
    size = bare.body + (8 if kind & _LONG_SIZE_BIT else 5)
    return start, size if kind in _USUAL.get(code, ()) and size <= _MOST_START else 0


@lru_cache(maxsize=2048)
def start_of(exchange: str, key: str, begun: bytes, size: int) -> Start | None:
    """The same by the beginning of a message; None where that does not tell all of it.

    Args:
        exchange: it was published to.
        key: with this routing key.
        begun: the message, or all of it but the bytes that are its body.
        size: of the message.
    """
    try:
        at = bare_position(begun)
        bare = _usual_bare(begun, at, size)
        if bare is not None:
            return Start(stored_head(exchange, key, begun[:at]), at, bare, user_of(begun, bare))
    except LinkFault:
        pass
    return None


def _with_body(bare: Bare, body: int) -> Bare:
    """What was found; raises LinkFault where no section of it was a body."""
    if not body:
        raise _unreadable("it has no body")
    return bare


def _check_order(code: int, last: int) -> None:
    """Raise LinkFault unless a section may follow the last one."""
    if code < last or (code == last and code in _ONCE):
        raise _unreadable("its sections are out of order, or one is there twice")


def _check_before_body(size: int) -> None:
    """Raise LinkFault when what filters and exchanges look at is too much."""
    if size > MAX_PROPERTIES_BYTES:
        raise _unreadable(
            f"its properties have {size:,} bytes, at most {MAX_PROPERTIES_BYTES:,} can"
        )


def _section_at(raw: bytes, at: int) -> tuple[int, int]:
    """Its code, and where its value begins."""
    if raw[at : at + 2] == SHORT_DESCRIPTOR:
        return raw[at + 2], at + 3
    return section_code(raw, at)


_ANY = frozenset(range(256))
_OF_MAPS, _OF_LISTS = frozenset((*codes.MAPS, codes.NULL)), frozenset(codes.LISTS)
_ALLOWED: dict[int, frozenset[int]] = {
    Section.PROPERTIES: _OF_LISTS,
    Section.APPLICATION_PROPERTIES: _OF_MAPS,
    Section.DATA: frozenset(codes.BINARIES),
    Section.SEQUENCE: _OF_LISTS,
    Section.VALUE: _ANY,
    Section.FOOTER: _OF_MAPS,
}
_BYTES_OR_TEXT = frozenset((*codes.BINARIES, *codes.STRINGS))
_USUAL: dict[int, frozenset[int]] = {  # their size is told, and nothing in them need be looked at
    Section.PROPERTIES: frozenset((codes.LIST_8, codes.LIST_32)),
    Section.APPLICATION_PROPERTIES: frozenset(codes.MAPS),
    Section.DATA: frozenset(codes.BINARIES),
    Section.VALUE: _BYTES_OR_TEXT,
}


def user_of(raw: bytes, bare: Bare) -> bytes | None:
    """The user that the publisher claims to be; None without a claim.

    Raises:
        LinkFault: the properties are malformed.
    """
    found = _property(raw, bare, _USER_ID)
    return found if isinstance(found, bytes) else None


def to_of(raw: bytes, bare: Bare) -> Exact:
    """The address that the message is for; None without one.

    Raises:
        LinkFault: the properties are malformed.
    """
    return _property(raw, bare, _TO)


def _property(raw: bytes, bare: Bare, index: int) -> Exact:
    if bare.properties is None:
        return None
    try:
        return find_in_list(raw, bare.properties, index)
    except FormatError as error:
        raise _unreadable(str(error)) from None


def _unreadable(why: str) -> LinkFault:
    return LinkFault(Condition.DECODE_ERROR, f"failed to parse message: {why}")


def _section(section: Section, value: bytes) -> bytes:
    return SHORT_DESCRIPTOR + bytes((section,)) + value


# -- out


BARE_STARTS = frozenset(SHORT_DESCRIPTOR + bytes((code,)) for code in _ALLOWED)


def is_section(raw: bytes, at: int) -> bool:
    """Whether a section of a bare message begins there.

    Raises:
        FormatError, IndexError: no section does.
    """
    return _section_at(raw, at)[0] in _ALLOWED


def around_offset(before: bytes, queue: str) -> tuple[bytes, bytes]:
    """What is delivered before a bare message, around the 8 bytes of the offset.

    Args:
        before: the sections that a stream keeps before it; left out where they are very large.
        queue: the routing key of a message that has none.

    Raises:
        FormatError: those are malformed.
    """
    if len(before) > MAX_ANNOTATIONS_BYTES:
        before = b""
    header, entries = b"", list[Entry]()
    for code, begin, at in some_sections(before):
        if code == Section.HEADER:
            header = before[begin : skip_value(before, at)]
        elif code == Section.MESSAGE_ANNOTATIONS:
            entries = read_entries(before, at)
    names = {entry.key for entry in entries if isinstance(entry.key, str)}
    kept = [entry.raw for entry in entries if entry.key != OFFSET]
    if EXCHANGE not in names and ROUTING_KEY not in names:
        kept.append(_own_annotations("", queue))
        count = len(kept) + 1
    else:
        count = len(kept)
    data = b"".join(kept)
    name = encode_symbol(OFFSET) + bytes((codes.LONG,))
    whole = _section(
        Section.MESSAGE_ANNOTATIONS, _map_of(name + bytes(_LONG_SIZE) + data, count + 1)
    )
    middle = len(whole) - len(data) - _LONG_SIZE
    return header + whole[:middle], whole[middle + _LONG_SIZE :]


def as_body(raw: bytes) -> bytes:
    """Bytes that are no message, as the body of one."""
    return _section(Section.DATA, encode_binary(raw))
