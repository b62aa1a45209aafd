"""What exchanges and bindings may be; raised as `Refused` where they are not. Plain functions."""

import math

from streamd.broker.checks import check_length
from streamd.broker.errors import Reason, Refused
from streamd.broker.routing.matching import ExchangeRow, Kind, RouteRow

DEFAULT_EXCHANGE = ""
RESERVED_PREFIX = "amq."
ALTERNATE, SUPER_STREAM = "alternate-exchange", "x-super-stream"  # arguments of an exchange
MAX_ROUTE_BYTES = 1_024  # of a binding's arguments


class ReservedName(Refused):
    """An exchange that every virtual host has, and nobody may declare or delete."""

    def __init__(self, details: str) -> None:
        super().__init__(Reason.ACCESS_REFUSED, details)


def check_not_default(name: str) -> None:
    """Raise ReservedName for the default exchange: it is there, and leads to every stream."""
    if name == DEFAULT_EXCHANGE:
        raise ReservedName("operation not permitted on the default exchange")


def check_not_reserved(name: str) -> None:
    """Raise ReservedName for a name that only RabbitMQ gives."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(f"exchange name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")


def check_arguments(route: RouteRow) -> None:
    """Raise Refused when a binding's arguments are too long, or no JSON."""
    size = sum(len(name) + len(str(value)) for name, value in route.arguments.items())
    if size > MAX_ROUTE_BYTES:
        details = (
            f"the binding's arguments have {size:,} characters, expected at most "
            f"{MAX_ROUTE_BYTES:,}"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)
    for name, value in route.arguments.items():
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            details = f"the binding's argument '{name}' is no UTF-8 text"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
            details = f"the binding's argument '{name}' is {value}, expected a finite number"
            raise Refused(Reason.PRECONDITION_FAILED, details)


def kind_of(text: str) -> Kind:
    """The kind of exchange that is meant.

    Raises:
        Refused: there is none of that name.
    """
    try:
        return Kind(text)
    except ValueError:
        details = f"invalid exchange type '{text[:40]}'; there are {', '.join(Kind)}"
        raise Refused(Reason.PRECONDITION_FAILED, details) from None


def as_super_stream(virtual_host: str, name: str) -> ExchangeRow:
    """A super stream as an exchange."""
    return ExchangeRow(virtual_host, name, Kind.DIRECT, True, False, False, "")


def check_lengths(row: ExchangeRow) -> None:
    """Raise Refused when an exchange's names are too long."""
    check_length("the name of an exchange", row.name)
    check_length(ALTERNATE, row.alternate)


def check_same(known: ExchangeRow, wanted: ExchangeRow) -> None:
    """Raise Refused when an exchange is to be declared again as another one."""
    for field, was, now in zip(ExchangeRow._fields, known, wanted, strict=True):
        if was != now:
            name = {"kind": "type", "alternate": ALTERNATE}.get(field, field)
            details = (
                f"inequivalent arg '{name.removeprefix('is_')}' for exchange '{known.name}' in "
                f"vhost '{known.virtual_host}': received '{now}' but current is '{was}'"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)


def check_same_super(row: ExchangeRow, was: bool, now: bool) -> None:
    """Raise Refused when an exchange that may be a super stream is to be the other thing.

    Args:
        row: the exchange.
        was: whether it is a super stream.
        now: whether it is to be one.
    """
    if was != now:
        details = (
            f"inequivalent arg '{SUPER_STREAM}' for exchange '{row.name}' in vhost "
            f"'{row.virtual_host}': received '{now}' but current is '{was}'"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)
