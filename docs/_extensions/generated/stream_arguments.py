"""The arguments of streams over all doors, from their declarations; only the meaning is here."""

from collections.abc import Iterator
from typing import NamedTuple

from generated.text import code
from segments.format_constants import MIN_FILTER_SIZE
from segments.policy import (
    BUSY_CHUNK_RECORDS,
    DEFAULT_CHUNK_BYTES,
    DEFAULT_SEGMENT_BYTES,
    IDLE_CHUNK_RECORDS,
)
from streamd.broker import arguments as a
from streamd.cli.streams import ARGUMENTS as OPTIONS
from streamd.connections.amqp091.queue_arguments import FLAGS, INTEGERS, PREFIX, TEXTS


class Meaning(NamedTuple):
    """What a declaration does not say of an argument."""

    default: str
    text: str


MEANINGS = {
    a.FILTER_SIZE: Meaning(
        str(MIN_FILTER_SIZE),
        "Bytes of each chunk's filter. `auto`: chunk by chunk, the smallest size that keeps false "
        f"positives within `{a.ERROR_RATE}`",
    ),
    a.ERROR_RATE: Meaning(
        f"{a.DEFAULT_ERROR_RATE} with `auto`, else none",
        "False positives to allow, as a share of the chunks without a wanted value. Each filter is "
        "then as small as that allows, and at most as large as the filter size",
    ),
    a.FILTER_PROPERTY: Meaning(
        "none",
        "The property whose values are the filter values; selectors choose chunks by it. An "
        "application property, or a fixed field such as `properties.subject`. With commas between "
        f"them, up to {a.MAX_FILTER_PROPERTIES} properties: values of the further ones are taken "
        "from each message by the server. A name with a comma is written `[a,b]`",
    ),
    a.FILTER_CONTRACT: Meaning(
        f"`{a.LENIENT}`",
        "`strict`: a message whose filter value is not the value of the filter property is "
        "refused. Needs a filter property",
    ),
    a.FILTER_DERIVE: Meaning(
        "`false`",
        "The server gives messages that come without a filter value the value of the filter "
        "property, also inside sub-batches. Needs a filter property",
    ),
    a.FILTER_HISTORY: Meaning(
        "`true`",
        "Each chunk lists its filter values, for the filter index and for tuning. Without them, "
        "chunks are chosen by their filters alone",
    ),
    a.KEY_PROPERTIES: Meaning(
        "none",
        "Properties whose values are keys, which `streamd find` finds messages by. Each is an "
        "application property, or a fixed field such as `properties.message_id`. Over the command "
        "line the option is given for each. When they are changed, all that is stored is indexed "
        "anew",
    ),
    a.MAX_LENGTH: Meaning(
        "none", "The oldest segments are deleted while the stream is larger, in bytes"
    ),
    a.MAX_AGE: Meaning("none", "Segments whose newest chunk is older are deleted"),
    a.SEGMENT_SIZE: Meaning(
        f"{DEFAULT_SEGMENT_BYTES:,}",
        "A new segment is begun at this size, in bytes",
    ),
    a.CHUNK_RECORDS: Meaning(
        f"{IDLE_CHUNK_RECORDS} to {BUSY_CHUNK_RECORDS:,} by load, {IDLE_CHUNK_RECORDS} with filter "
        "values",
        "Messages in a chunk, at most. Smaller chunks can be skipped more often",
    ),
    a.CHUNK_BYTES: Meaning(
        f"{DEFAULT_CHUNK_BYTES:,}",
        "Bytes of messages in a chunk, at most; a larger message gets a chunk of its own",
    ),
    "initial-cluster-size": Meaning("none", "Read and kept for RabbitMQ's clients; without effect"),
    "queue-leader-locator": Meaning("none", "Read and kept for RabbitMQ's clients; without effect"),
}
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
