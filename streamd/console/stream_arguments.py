"""Forms for the arguments of streams: which there are, under which headings, what each means."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from streamd.broker.declared import arguments as a
from streamd.broker.declared.argument_meanings import MEANINGS
from streamd.console.forms import Form


class ArgumentField(NamedTuple):
    """A field of a form.

    Attributes:
        name: the argument.
        title: the field's label.
        help: what it means, in Markdown.
        default: what holds without it, in Markdown.
        choices: its values, with their titles; empty for a field to type in.
        example: shown where nothing was typed.
    """

    name: str
    title: str
    help: str
    default: str
    choices: tuple[tuple[str, str], ...]
    example: str


_YES_NO = (("", "default"), ("true", "yes"), ("false", "no"))
_CHOICES = {
    a.FILTER_DERIVE: _YES_NO,
    a.FILTER_HISTORY: _YES_NO,
    a.TIER: _YES_NO,
    a.FILTER_CONTRACT: (("", "default"), (a.LENIENT, a.LENIENT), (a.STRICT, a.STRICT)),
}
_EXAMPLES = {
    a.MAX_LENGTH: "10000000000",
    a.MAX_AGE: "7D, 12h",
    a.LOCAL_LENGTH: "1000000000",
    a.LOCAL_AGE: "1D, 12h",
    a.SEGMENT_SIZE: "500000000",
    a.FILTER_PROPERTY: "region",
    a.FILTER_SIZE: "64, auto",
    a.ERROR_RATE: "0.01",
    a.CHUNK_RECORDS: "100",
    a.CHUNK_BYTES: "1000000",
    a.KEY_PROPERTIES: "order_id,properties.message_id",
}
# Heading, and arguments with their titles.
_GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "How much is kept",
        (
            (a.MAX_LENGTH, "Size, at most"),
            (a.MAX_AGE, "Age, at most"),
            (a.SEGMENT_SIZE, "Segment size"),
        ),
    ),
    (
        "Tier",
        (
            (a.TIER, "Upload full segments"),
            (a.LOCAL_LENGTH, "Local size, at most"),
            (a.LOCAL_AGE, "Local age, at most"),
        ),
    ),
    (
        "Filters",
        (
            (a.FILTER_PROPERTY, "Filter property"),
            (a.FILTER_DERIVE, "Derive filter values"),
            (a.FILTER_CONTRACT, "Filter contract"),
            (a.FILTER_SIZE, "Filter size"),
            (a.ERROR_RATE, "Error rate"),
            (a.FILTER_HISTORY, "List filter values"),
        ),
    ),
    ("Keys", ((a.KEY_PROPERTIES, "Key properties"),)),
    (
        "Chunks",
        ((a.CHUNK_RECORDS, "Messages in a chunk"), (a.CHUNK_BYTES, "Bytes in a chunk")),
    ),
)
TITLES = {name: title for _, fields in _GROUPS for name, title in fields}


def groups(chosen: Callable[[str], bool]) -> Iterator[tuple[str, list[ArgumentField]]]:
    """Headings with their fields, as far as those are chosen by the names of their arguments."""
    for heading, fields in _GROUPS:
        found = [_field(name, title) for name, title in fields if chosen(name)]
        if found:
            yield heading, found


def _field(name: str, title: str) -> ArgumentField:
    default, text = MEANINGS[name]
    choices = _CHOICES.get(name, ())
    return ArgumentField(name, title, f"{text}.", default, choices, _EXAMPLES.get(name, ""))


def given(form: Form, names: Iterable[str]) -> dict[str, str]:
    """The arguments that were filled in."""
    return {name: text for name in names if (text := form.text(name))}


def as_text(arguments: Mapping[str, a.Value]) -> dict[str, str]:
    """Arguments as they are typed."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in a.plain_arguments(arguments).items()
    }
