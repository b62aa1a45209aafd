"""Rules for exchanges and bindings; breaking one raises `Refused`. Plain functions."""

import math

from streamd.operations.errors import Inequivalent, Reason, Refused, ReservedName
from streamd.operations.names import Name, check_new
from streamd.operations.routing import (
    ALTERNATE,
    DEFAULT_EXCHANGE,
    RESERVED_PREFIX,
    SUPER_STREAM,
    Binding,
    ExchangeRow,
)

_ARGUMENTS = {"alternate": ALTERNATE, "is_super_stream": SUPER_STREAM}
MAX_ARGUMENTS_BYTES = 1_024  # of a binding's arguments


def check_not_default(name: Name) -> None:
    """Raise ReservedName for the default exchange: it always exists, and leads to every stream."""
    if name == DEFAULT_EXCHANGE:
        raise ReservedName("operation not permitted on the default exchange")


def check_not_reserved(name: Name) -> None:
    """Raise ReservedName for a name that only RabbitMQ gives."""
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(f"exchange name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")


def check_arguments(binding: Binding) -> None:
    """Raise Refused when a binding's arguments are too long, or cannot be written as JSON."""
    size = sum(len(name) + len(str(value)) for name, value in binding.arguments.items())
    if size > MAX_ARGUMENTS_BYTES:
        details = (
            f"the binding's arguments have {size:,} characters, expected at most "
            f"{MAX_ARGUMENTS_BYTES:,}"
        )
        raise Refused(Reason.PRECONDITION_FAILED, details)
    for name, value in binding.arguments.items():
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            details = f"the binding's argument '{name}' is not UTF-8 text"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
            details = f"the binding's argument '{name}' is {value}, expected a finite number"
            raise Refused(Reason.PRECONDITION_FAILED, details)


def check_names(row: ExchangeRow) -> None:
    """Raise Refused unless a new exchange may have this name and this alternate."""
    check_new("an exchange", row.name)
    if row.alternate:
        check_new(f"an {ALTERNATE}", row.alternate)


def check_same(known: ExchangeRow, wanted: ExchangeRow) -> None:
    """Raise Inequivalent when an exchange is declared again with other properties."""
    for field, was, now in zip(ExchangeRow._fields, known, wanted, strict=True):
        if was != now:
            name = _ARGUMENTS.get(field, field)
            details = (
                f"inequivalent arg '{name.removeprefix('is_')}' for exchange '{known.name}' in "
                f"vhost '{known.virtual_host}': received '{now}' but current is '{was}'"
            )
            raise Inequivalent(details)
