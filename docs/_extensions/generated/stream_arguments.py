"""The arguments of streams over all doors, from their declarations and meanings."""

from collections.abc import Iterator

from generated.text import code
from streamd.broker.declared import arguments as a
from streamd.broker.declared.argument_meanings import MEANINGS
from streamd.cli.streams import ARGUMENTS as OPTIONS
from streamd.connections.amqp091.queue_arguments import FLAGS, INTEGERS, PREFIX, TEXTS

_PROPERTY_NAME = "names of properties, of at most 255 bytes, further ones of at most 200"


def markdown() -> str:
    """The table."""
    return "\n".join(
        [
            "```{list-table}",
            ":header-rows: 1",
            ":widths: 34 28 38",
            ":class: arguments",
            *_cells("Argument", "Value", "Meaning"),
            *(line for name in MEANINGS for line in _row(name)),
            "```",
        ]
    )


def option_of(name: str) -> str | None:
    """The option of `streamd stream create` for an argument."""
    if name == a.FILTER_DERIVE:  # a flag
        return "--filter-derive"
    keys = {argument: key for key, argument in OPTIONS.items()}
    return f"--{keys[name].replace('_', '-')}" if name in keys else None


def _row(name: str) -> Iterator[str]:
    default, meaning = MEANINGS[name]
    option = option_of(name)
    names = [*([option] if option else []), name, f"{PREFIX}{name}"]
    value = [f"{_expected(name)}.", f"AMQP: {_amqp_type(name)}.", f"Default: {default}."]
    if name in a.SETTINGS:
        value.append("**Can be changed.**")
    yield from _cells("\\\n".join(map(code, names)), "\\\n".join(value), f"{meaning}.")


def _cells(*texts: str) -> Iterator[str]:
    for n, text in enumerate(texts):
        indented = text.replace("\n", "\n    ")
        yield f"{'*' if n == 0 else ' '} - {indented}"


def _expected(name: str) -> str:
    """What an error of its reader says is expected."""
    if name == a.FILTER_PROPERTY:  # its errors say where the name is wrong
        return _PROPERTY_NAME.capitalize()
    if name == a.KEY_PROPERTIES:
        return f"Up to {a.MAX_KEY_PROPERTIES} names of properties, with commas between them"
    try:
        a.READERS[name]("?")
    except ValueError as error:
        text = str(error)
        return f"{text[0].upper()}{text[1:]}"
    raise AssertionError(f"{name} takes anything")


def _amqp_type(name: str) -> str:
    if name in TEXTS:
        return "a string"
    if name in INTEGERS:
        return "an integer"
    if name in FLAGS:
        return "a boolean or a string"
    return {a.FILTER_SIZE: "an integer, or `auto`", a.ERROR_RATE: "a float or a string"}[name]
