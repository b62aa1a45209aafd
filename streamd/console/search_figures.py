"""What a search has looked at, over all its pages so far: as a bar, as a table, and in words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from segments.search.page import LookedAt
from segments.search.request import SearchRequest
from segments.selector import Pushdown
from segments.words import plural, whole_number
from streamd.console.words import size
from streamd.operations.searching import FoundPage

_COUNTERS = tuple(item.name for item in fields(LookedAt))
_MOST = 10**15
_SHOWN_VALUES = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over the pages of a search.

    Attributes:
        found: messages.
        milliseconds: that the server has searched.
        matching: chunks with a message that was found.
    """

    found: int
    milliseconds: int
    matching: int
    looked_at: LookedAt

    @classmethod
    def read(cls, text: str) -> "Figures":
        """Those that `str` has made a text of, which an address has brought; else all zero."""
        parts = [whole_number(part, most=_MOST) for part in text.split(".")]
        numbers = [number for number in parts if number is not None]
        if not len(parts) == len(numbers) == len(_COUNTERS) + 3:
            numbers = [0] * (len(_COUNTERS) + 3)
        found, milliseconds, matching, *counts = numbers
        return cls(found, milliseconds, matching, LookedAt(*counts))

    def __str__(self) -> str:
        counts = self.looked_at.as_dict().values()
        return ".".join(map(str, (self.found, self.milliseconds, self.matching, *counts)))

    def plus(self, page: FoundPage, milliseconds: int) -> "Figures":
        """These, and those of one more page."""
        counts = page.looked_at.as_dict()
        sums = {name: number + counts[name] for name, number in self.looked_at.as_dict().items()}
        return Figures(
            self.found + len(page.messages),
            self.milliseconds + milliseconds,
            self.matching + len({message.chunk for message in page.messages}),
            LookedAt(**sums),
        )

    @property
    def skipped(self) -> int:
        """Chunks that were skipped."""
        at = self.looked_at
        return at.chunks_skipped_by_time + at.chunks_skipped_by_keys + at.chunks_skipped_by_filter


class Part(NamedTuple):
    """A part of the bar.

    Attributes:
        chunks: how many.
        x, width: in per cent of the bar.
    """

    kind: str
    title: str
    chunks: int
    x: float
    width: float


class Bar(NamedTuple):
    """What became of the chunks of a stream.

    Attributes:
        parts: those that are not empty, side by side.
        bytes_saved: that were not read, about.
    """

    parts: list[Part]
    num_chunks: int
    bytes_saved: int


def bar_of(figures: Figures, num_chunks: int, num_bytes: int) -> Bar:
    """The bar of a search."""
    at = figures.looked_at
    counts = [
        ("matching", "read, with a message that was found", figures.matching),
        ("read", "read, without one", max(0, at.chunks_read - figures.matching)),
        ("by-filter", "skipped by their filter", at.chunks_skipped_by_filter),
        ("by-keys", "skipped by the key index", at.chunks_skipped_by_keys),
        ("by-time", "skipped by time", at.chunks_skipped_by_time),
        ("damaged", "damaged", at.chunks_damaged),
    ]
    looked_at = sum(count for *_, count in counts)
    counts.append(("rest", "not searched", max(0, num_chunks - looked_at)))
    total = max(num_chunks, looked_at)
    parts, x = [], 0.0
    for kind, title, count in counts:
        if count:
            width = 100 * count / total
            parts.append(Part(kind, title, count, round(x, 3), round(width, 3)))
            x += width
    saved = num_bytes * figures.skipped // total if total else 0
    return Bar(parts, total, saved)


def plan_of(request: SearchRequest, figures: Figures) -> list[str]:
    """Why the search was as quick or as slow as it was: sentences."""
    return [
        *_wanted(request),
        *_by_time(request, figures),
        *_by_keys(request, figures),
        *_by_filter(request, figures),
        *_by_bytes(request, figures),
        *_damage(figures),
    ]


def _wanted(request: SearchRequest) -> Iterator[str]:
    order = "The newest message comes first" if request.newest else "The oldest message comes first"
    if request.offset is not None:
        order += f", beginning with offset {request.offset:,}"
    yield f"{order}."


def _by_time(request: SearchRequest, figures: Figures) -> Iterator[str]:
    if request.from_ms is not None:
        skipped = figures.looked_at.chunks_skipped_by_time
        yield (
            "Chunks have the time at which they were stored, and are in that order, so the search "
            f"goes straight to the place: {plural(skipped, 'chunk')} skipped."
        )


def _by_keys(request: SearchRequest, figures: Figures) -> Iterator[str]:
    if not request.keys:
        return
    at, names = figures.looked_at, _list(request.properties, "or")
    yield f"The key is looked for in {names}."
    scanned = at.segments - at.segments_indexed
    if not at.segments:
        return
    if not scanned:
        yield (
            f"Each of the {plural(at.segments, 'segment')} has an index of the keys: "
            f"{plural(at.chunks_skipped_by_keys, 'chunk')} skipped."
        )
    else:
        yield (
            f"{scanned:,} of {plural(at.segments, 'segment')} {'was' if scanned == 1 else 'were'} "
            "scanned, because no index has all their keys: the newest messages are indexed a "
            "little later, older ones when a key property was declared after them, and only key "
            "properties are. "
            f"{plural(at.chunks_skipped_by_keys, 'chunk')} skipped by the key index."
        )


def _by_filter(request: SearchRequest, figures: Figures) -> Iterator[str]:
    names = request.filter_properties
    number = figures.looked_at.chunks_skipped_by_filter
    skipped = f"{plural(number, 'chunk')} {'was' if number == 1 else 'were'}"
    if request.filter_values:
        yield (
            "Only chunks whose filter may hold the filter value are read: by their filters, "
            f"{skipped} skipped."
        )
    if request.selector is None:
        return
    if not names:
        yield (
            "The stream declares no filter property, so filters skip no chunk: with one, a "
            "condition on it would."
        )
        return
    asked = request.selector.push_down(names, is_strict=request.is_strict)
    if asked.is_empty:
        yield "No message can fulfil the condition, whatever is in it: nothing is read."
    elif asked.values is None and not asked.properties:
        named = _list(names, "and")
        yield f"The condition does not narrow {named}: filters skip no chunk."
    else:
        yield (
            f"The condition is true only where {_narrowed(asked, names[0])}. By their filters, "
            f"{skipped} skipped that hold no such message."
        )


def _narrowed(asked: Pushdown, first: str) -> str:
    found = []
    if asked.values is not None:
        text = f"{first} is {_values(asked.values)}" if asked.values else ""
        if asked.match_unfiltered:
            text += " or the message has no filter value" if text else "there is no filter value"
        found.append(text)
    found += [f"{wish.name} is {_values(wish.values)}" for wish in asked.properties]
    return ", and ".join(found)


def _values(values: Iterable[bytes]) -> str:
    shown = sorted(value.decode(errors="replace")[:40] for value in values)
    quoted = [f"“{text}”" for text in shown[:_SHOWN_VALUES]]
    if len(shown) > _SHOWN_VALUES:
        quoted.append(f"one of {len(shown) - _SHOWN_VALUES:,} others")
    return _list(quoted, "or")


def _by_bytes(request: SearchRequest, figures: Figures) -> Iterator[str]:
    at = figures.looked_at
    yield f"{plural(at.chunks_read, 'chunk')} read, {size(at.bytes_read)}."
    if request.keys or request.selector is not None or request.filter_values:
        tested = f"{plural(at.messages_tested, 'message')} tested one by one"
        if at.messages_screened:
            tested += (
                f", {at.messages_screened:,} ruled out before, because bytes that each match "
                "contains are not in them"
            )
        yield f"{tested}."


def _damage(figures: Figures) -> Iterator[str]:
    at = figures.looked_at
    if at.chunks_damaged:
        yield (
            f"{plural(at.chunks_damaged, 'chunk')} with {plural(at.messages_lost, 'message')} are "
            "damaged and were left out; the server's log names them."
        )


def _list(names: Iterable[str], word: str) -> str:
    found = list(names)
    return f" {word} ".join([*([", ".join(found[:-1])] if found[:-1] else []), *found[-1:]])
