"""What is searched for."""

from dataclasses import dataclass, replace

import mmh3

from segments.selector import Property, Selector, parse_property

MAX_KEYS = 256
MAX_KEY_BYTES = 1_024
MAX_PROPERTIES = 8  # as many as a stream declares
MAX_LIMIT = 10_000


class BadSearch(ValueError):
    """The request cannot be searched for; one sentence says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Which messages of a stream are wanted, and in which order.

    Attributes:
        keys: a message has to have one of these in one of `properties`; none: it need not.
        properties: where keys are looked for, by the names that users write.
        from_ms, to_ms: times, both inclusive, in ms since 1970; None for no bound.
        by_creation_time: they are those of the messages, which a message without one is never
            within; else of the chunks, when they were written.
        selector: is true of a message.
        filter_values: one of these is the value of the first filter property; none: any, or none.
        filter_properties: the names of those that the stream has declared, the first one first.
        is_strict: every message with such a property has its value as its filter value.
        newest: the newest message first.
        offset: the first message that may be found, in that order.
        limit: messages that are wanted at most.
        latest: of each key only the newest message.
    """

    keys: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    by_creation_time: bool = False
    selector: Selector | None = None
    filter_values: tuple[bytes, ...] = ()
    filter_properties: tuple[str, ...] = ()
    is_strict: bool = False
    newest: bool = False
    offset: int | None = None
    limit: int = 100
    latest: bool = False

    @property
    def filter_property(self) -> Property | None:
        """The one whose values are the stream's filter values."""
        return parse_property(self.filter_properties[0]) if self.filter_properties else None

    def check(self) -> None:
        """Raise BadSearch where parts do not fit together."""
        if not 1 <= self.limit <= MAX_LIMIT:
            raise BadSearch(f"limit is {self.limit}, expected 1 to {MAX_LIMIT:,}")
        self._check_keys()
        if self.from_ms is not None and self.to_ms is not None and self.to_ms < self.from_ms:
            raise BadSearch("to is before from: no time is between them")
        if self.filter_values and not self.filter_properties:
            raise BadSearch("the stream declares no filter property, so filter finds no message")
        if not all(self.filter_values):
            raise BadSearch("filter is empty, expected a filter value")

    def _check_keys(self) -> None:
        if len(self.keys) > MAX_KEYS:
            raise BadSearch(f"there are {len(self.keys):,} keys, expected at most {MAX_KEYS}")
        if len(self.properties) > MAX_PROPERTIES:
            count = len(self.properties)
            raise BadSearch(f"there are {count:,} properties, expected at most {MAX_PROPERTIES}")
        for key in self.keys:
            if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
                size = len(key.encode())
                raise BadSearch(f"a key has {size:,} bytes, expected 1 to {MAX_KEY_BYTES:,}")
        if self.keys and not self.properties:
            raise BadSearch(
                "the stream declares no key property: say with property where the key stands"
            )
        if self.properties and not self.keys:
            raise BadSearch("property needs key, which is looked for in it")
        if self.latest and not self.keys:
            raise BadSearch("latest needs key: it finds the newest message of each")

    def fingerprint(self) -> int:
        """Tells requests apart but for their limit: a token goes on with one of the same."""
        dialect = None if self.selector is None else str(self.selector.dialect)
        told = repr((str(self.selector), dialect, replace(self, limit=1, selector=None)))
        return mmh3.hash64(told.encode(errors="surrogatepass"), signed=False)[0]
