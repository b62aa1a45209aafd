"""The arguments of streams over all doors, from the table of them."""

from docs.generated.text import code
from streamd.connections.queue_arguments import PREFIX
from streamd.operations.arguments import ARGUMENTS, Argument


def markdown() -> str:
    """The table."""
    rows = map(_row, ARGUMENTS.values())
    return "\n".join(["| Argument | Value | Meaning |", "|---|---|---|", *rows])


def _row(argument: Argument) -> str:
    names = [argument.option, argument.name, f"{PREFIX}{argument.name}"]
    expected, kind = argument.kind.expected, argument.kind.amqp.value
    value = [f"{expected[:1].upper()}{expected[1:]}.", f"AMQP: {kind}."]
    value.append(f"Default: {argument.default}.")
    if argument.changes:
        value.append("**Can be changed.**")
    names_text = "<br>".join(map(code, filter(None, names)))
    return f"| {names_text} | {'<br>'.join(value)} | {argument.meaning}. |"
