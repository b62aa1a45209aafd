"""The arguments of streams over all doors, from the table of them."""

from collections.abc import Iterator

from generated.text import code
from streamd.connections.amqp091.queue_arguments import PREFIX
from streamd.operations.arguments import ARGUMENTS, Argument


def markdown() -> str:
    """The table."""
    return "\n".join(
        [
            "```{list-table}",
            ":header-rows: 1",
            ":widths: 34 28 38",
            ":class: arguments",
            *_cells("Argument", "Value", "Meaning"),
            *(line for argument in ARGUMENTS.values() for line in _row(argument)),
            "```",
        ]
    )


def _row(argument: Argument) -> Iterator[str]:
    names = [argument.option, argument.name, f"{PREFIX}{argument.name}"]
    expected, kind = argument.kind.expected, argument.kind.amqp.value
    value = [f"{expected[:1].upper()}{expected[1:]}.", f"AMQP: {kind}."]
    value.append(f"Default: {argument.default}.")
    if argument.changes:
        value.append("**Can be changed.**")
    names_text = "\\\n".join(map(code, filter(None, names)))
    yield from _cells(names_text, "\\\n".join(value), f"{argument.meaning}.")


def _cells(*texts: str) -> Iterator[str]:
    for n, text in enumerate(texts):
        indented = text.replace("\n", "\n    ")
        yield f"{'*' if n == 0 else ' '} - {indented}"
