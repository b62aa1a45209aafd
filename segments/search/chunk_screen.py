"""Which chunks can hold a wanted message, and which of their messages can be one.

Both are told by the filter values that the stream promises.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

from segments.bloom import ChunkMatcher
from segments.columns import Columns
from segments.filter_index import Index, chunks_at_once, matching
from segments.format_constants import MMH3_SCHEME
from segments.keys.forms import KEYS, TEXT, forms_of_key
from segments.pushed_down import matcher_of
from segments.row_screen import RowScreen
from segments.search.request import SearchRequest
from segments.selector import parse_property
from segments.selector.pushdown import MAX_VALUES, is_spelled

_MOST_ASKED = 1 << 16  # columns, times messages: 10 ms where each message has another value


class ChunkTest:
    """Rules chunks out by their filters, and messages by the columns of their chunks.

    Attributes:
        is_empty: no message of the stream can be wanted.
    """

    def __init__(self, request: SearchRequest) -> None:
        self.is_empty = False
        self.matchers: list[ChunkMatcher] = []
        self._rows: list[Callable[[Columns], int | None]] = []
        self._num_tests = 1  # what these ask of columns
        names = request.filter_properties
        if not names:
            return
        if request.selector is not None:
            asked = request.selector.push_down(names, is_strict=request.is_strict)
            self.is_empty = asked.is_empty
            matcher = matcher_of(asked)
            if matcher is not None:
                self.matchers.append(matcher)
            screen = RowScreen(request.selector, names, is_strict=request.is_strict)
            if screen.is_useful:
                self._rows.append(screen.rows)
                self._num_tests = screen.num_tests
        # With very many values each chunk takes longer to be asked than to be searched.
        if 0 < len(request.filter_values) <= MAX_VALUES:
            # A number has its text as a filter value where the publisher gave it, else none.
            unfiltered = not request.is_strict or any(map(is_spelled, request.filter_values))
            self._add(frozenset(request.filter_values), match_unfiltered=unfiltered)
            self._rows.append(self.matchers[-1].rows)
        if _is_key(request):
            forms = [form for key in request.keys for form in forms_of_key(key)]
            values = frozenset(form[1:] for form in forms if form.startswith(TEXT))
            is_spelled_key = len(values) < len(set(forms))
            # The number 5.0 is found by "5" and, where the publisher gave it, has "5.0" for a
            # filter value; with a strict contract it has none.
            if request.is_strict or not is_spelled_key:
                unfiltered = not request.is_strict or is_spelled_key
                self._add(values, match_unfiltered=unfiltered)

    def _add(self, values: frozenset[bytes], *, match_unfiltered: bool) -> None:
        self.matchers.append(ChunkMatcher(values, match_unfiltered=match_unfiltered))

    @property
    def has_rows(self) -> bool:
        """Columns may rule messages out."""
        return bool(self._rows)

    def rows(self, columns: Columns) -> int | None:
        """The messages of a chunk that may be wanted, see `Columns.rows`; None for all.

        What might take long, where each message has another value, is not asked.
        """
        if self._num_tests * columns.num_records > _MOST_ASKED:
            return None
        found = [rows for test in self._rows if (rows := test(columns)) is not None]
        return reduce(and_, found) if found else None

    @property
    def values(self) -> frozenset[bytes] | None:
        """All that `choose` looks for in a filter index; None where it needs none."""
        clauses = [clause for matcher in self.matchers for clause in matcher.clauses]
        marks = (clause.mark for clause in clauses if clause.mark is not None)
        return frozenset(marks).union(*(one.keys for one in clauses)) if clauses else None

    @property
    def num_at_once(self) -> int:
        """How many chunks `choose` may be asked about in one go."""
        return chunks_at_once(self.matchers)

    def choose(self, filters: Index, ordinals: Sequence[int]) -> Sequence[int]:
        """The chunks of a range that may match, by number and in order."""
        for matcher in self.matchers:
            if ordinals:
                may = set(matching(filters, matcher, range(ordinals[0], ordinals[-1] + 1)))
                ordinals = [ordinal for ordinal in ordinals if ordinal in may]
        return ordinals

    def matches(self, scheme: int, size: int, filter_bytes: bytes) -> bool:
        """Whether a chunk may match, by its own filter; see `ChunkMatcher.matches`."""
        return all(m.matches(scheme, size, filter_bytes) for m in self.matchers)

    def is_doubtful(self, filter_bytes: bytes, trailer: bytes) -> bool:
        """Whether one that does not match may nevertheless; see `ChunkMatcher.is_doubtful`."""
        return all(
            m.matches(MMH3_SCHEME, len(filter_bytes), filter_bytes)
            or m.is_doubtful(filter_bytes, trailer)
            for m in self.matchers
        )


def _is_key(request: SearchRequest) -> bool:
    """Whether the filter value of a message is the key that is looked for."""
    if len(request.properties) != 1 or not 0 < len(request.keys) <= MAX_VALUES:
        return False
    (prop,) = map(parse_property, request.properties)
    return prop == request.filter_property and prop.name != KEYS  # several in one value
