"""Property filters: values that properties of a message have to have, as a selector.

Such a filter is the conjunction of its fields. RabbitMQ's SQL compares values as its property
filters do (numbers by their value, texts, symbols, binaries and UUIDs by their bytes, other types
not at all), so a filter becomes a selector in that dialect: the same columns, chunks and screens
serve both.

A property that is null counts as missing, as in selectors. Characters, decimals and compounds equal
nothing.

Source: OASIS AMQP Filter Expressions 1.0, 4; rabbitmq/rabbitmq-server,
deps/rabbit/src/rabbit_amqp_filter_prop.erl.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from math import isfinite
from typing import NamedTuple
from uuid import UUID

from segments.amqp10 import Char, Symbol
from segments.selector import Dialect, Property, Selector, nodes as n
from segments.selector.nodes import PropertySection
from segments.times import whole_ms
from streamd.wire.amqp10.values import Described, Exact, Uint, Ulong

PROPERTIES = ("amqp:properties-filter", 0x173)
APPLICATION_PROPERTIES = ("amqp:application-properties-filter", 0x174)
MAX_FIELDS = 16
_SHOWN = 40  # characters of what cannot be used

_AFFIX, _PREFIX, _SUFFIX = "&", "&p:", "&s:"
_ESCAPE = "\\"
_ANY = "%"
_SPECIAL = str.maketrans({char: _ESCAPE + char for char in (_ESCAPE, _ANY, "_")})
_IDS, _TEXT = (Ulong, UUID, bytes, str), (str,)
_KINDS: dict[str, Collection[type]] = {
    "message-id": _IDS,
    "user-id": (bytes,),
    "to": _TEXT,
    "subject": _TEXT,
    "reply-to": _TEXT,
    "correlation-id": _IDS,
    "content-type": (Symbol,),
    "content-encoding": (Symbol,),
    "absolute-expiry-time": (datetime,),
    "creation-time": (datetime,),
    "group-id": _TEXT,
    "group-sequence": (Uint,),
    "reply-to-group-id": _TEXT,
}


class PropertyFilter(NamedTuple):
    """A filter that can be used.

    Attributes:
        section: of a message, which has the properties.
        fields: what each has to be; one is enough to refuse a message.
    """

    section: PropertySection
    fields: tuple[n.Node, ...]


def selector_of(filters: Collection[PropertyFilter]) -> Selector:
    """What selects the messages that pass through each of some filters, at least one."""
    fields = tuple(field for one in filters for field in one.fields)
    return Selector(fields[0] if len(fields) == 1 else n.And(fields), Dialect.AMQP)


def read_property_filter(value: Exact) -> PropertyFilter:
    """The filter that a value describes.

    Raises:
        ValueError: it describes none; says why.
    """
    if not isinstance(value, Described):
        raise ValueError("the value is not described")
    for section, names, read in (
        (PropertySection.PROPERTIES, PROPERTIES, _of_properties),
        (PropertySection.APPLICATION, APPLICATION_PROPERTIES, _of_application_properties),
    ):
        if is_named(value.descriptor, names):
            return PropertyFilter(section, _fields(value.value, read))
    raise ValueError(f"there is no filter {str(value.descriptor)[:_SHOWN]}")


def is_named(descriptor: Exact, names: tuple[str, int]) -> bool:
    """Whether a descriptor is one of the two of a type, a symbol and a number."""
    name, code = names
    if isinstance(descriptor, Symbol):
        return descriptor == name
    return isinstance(descriptor, Ulong) and descriptor == code


def _fields(given: Exact, read: Callable[[Exact, Exact], n.Node]) -> tuple[n.Node, ...]:
    if not isinstance(given, dict) or not 1 <= len(given) <= MAX_FIELDS:
        raise ValueError(f"expected a map of 1 to {MAX_FIELDS} fields")
    return tuple(read(key, value) for key, value in given.items())


def _of_properties(key: Exact, value: Exact) -> n.Node:
    kinds = _KINDS.get(key) if isinstance(key, Symbol) else None
    if kinds is None:
        raise ValueError(f"{str(key)[:_SHOWN]!r} is no symbol of a property")
    if type(value) not in kinds:
        raise ValueError(f"{key} is {str(value)[:_SHOWN]!r}, which is of another type")
    return _test(Property(PropertySection.PROPERTIES, key.replace("-", "_")), value)


def _of_application_properties(key: Exact, value: Exact) -> n.Node:
    if type(key) is not str:
        raise ValueError(f"{str(key)[:_SHOWN]!r} is no string")
    return _test(Property(PropertySection.APPLICATION, key), value)


def _test(subject: Property, value: Exact) -> n.Node:
    """True for messages in which a property has a value."""
    if value is None:
        return n.IsNull(subject, negated=True)
    if type(value) is not str or not value.startswith(_AFFIX):
        operand = _operand(value)
        return n.Literal(False) if operand is None else n.Comparison("=", subject, operand)
    if value.startswith(_PREFIX):
        return _like(subject, value.removeprefix(_PREFIX), after=_ANY)
    if value.startswith(_SUFFIX):
        return _like(subject, value.removeprefix(_SUFFIX), before=_ANY)
    if value.startswith(2 * _AFFIX):
        return n.Comparison("=", subject, n.Literal(value.removeprefix(_AFFIX)))
    expected = f"{_PREFIX}, {_SUFFIX} or {2 * _AFFIX}"
    raise ValueError(f"{value[:_SHOWN]!r} begins with {_AFFIX}, expected {expected}")


def _like(subject: Property, text: str, *, before: str = "", after: str = "") -> n.Node:
    return n.Like(subject, before + text.translate(_SPECIAL) + after, _ESCAPE)


def _operand(value: Exact) -> n.Node | None:
    """A value as selectors write it; None for one that they do not compare."""
    plain: n.Constant = None
    match value:
        case Char():
            pass
        case bool():
            plain = value
        case int() | float():
            if isfinite(value):
                size = n.Literal(abs(value))  # of no type of its own
                return n.Sign("-", size) if value < 0 else size
        case str():
            plain = str(value)
        case bytes():
            plain = value or ""  # SQL has no binary of no bytes; the two are equal
        case datetime():
            return _operand(whole_ms(value))
        case UUID():
            plain = value.bytes
    return None if plain is None else n.Literal(plain)
