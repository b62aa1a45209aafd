"""Patterns of topic exchanges, against a plain definition, and the work they take."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import example, given, strategies as st

from streamd.broker.routing.binding_index import BindingIndex
from streamd.broker.routing.topics import TopicPatterns, is_literal, words_of
from streamd.net.turns import Steps, Stepwise
from streamd.operations.routing import NO_HEADERS, Binding, ExchangeType
from tests.support.cost import lines_run

Result = TypeVar("Result")
WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#", "a#"]), max_size=6).map(".".join)


def plainly(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(plainly(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and plainly(pattern[1:], words[1:])


@given(WORDS, WORDS)
@example("#.#", "")
def test_as_defined(pattern: str, key: str) -> None:
    expected = plainly(words_of(pattern), words_of(key))
    patterns = TopicPatterns()
    finished(patterns.add([pattern]))
    assert finished(patterns.matching(key)) == [pattern] * expected
    if is_literal(pattern):
        assert expected is (pattern == key)


@pytest.mark.parametrize(("key", "words"), [("", []), (".", ["", ""]), ("a..b", ["a", "", "b"])])
def test_words(key: str, words: list[str]) -> None:
    assert words_of(key) == words


def bound(*keys: str) -> list[Binding]:
    return [Binding("/", "x", f"s{n}", False, key, NO_HEADERS) for n, key in enumerate(keys)]


@given(st.sampled_from(["direct", "topic", "fanout"]), st.lists(WORDS), st.lists(WORDS, max_size=3))
def test_an_index_finds_the_bindings_in_their_order(
    exchange_type: str, patterns: list[str], keys: list[str]
) -> None:
    def follows(pattern: str) -> bool:
        if exchange_type == ExchangeType.TOPIC:
            return any(plainly(words_of(pattern), words_of(key)) for key in keys)
        return exchange_type == ExchangeType.FANOUT or pattern in keys

    bindings = bound(*patterns)
    found = finished(BindingIndex(exchange_type, bindings).followed(keys, NO_HEADERS))
    assert found == [binding for binding in bindings if follows(binding.key)]


def finished(steps: Steps[Result]) -> Result:
    work = Stepwise(steps)
    while not work.is_done:
        work.go_on()
    return work.result


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        # Made up so that every place of every pattern is reached by every word.
        (
            lambda n: ".".join(
                "*#"[n >> bit & 1] if bit < 12 else "#a"[bit & 1] for bit in range(127)
            ),
            "a." * 126,
        ),
        (lambda n: f"#.{n}", "7"),
        (lambda n: f"{n}.*.#." + "a." * 50, "7.a.a"),
    ],
)
def test_no_step_takes_long(pattern: Callable[[int], str], key: str) -> None:
    """However many bindings there are, whatever their patterns: also when they were just bound."""
    index = BindingIndex("topic", bound(*map(pattern, range(3_000))))
    for _ in range(2):
        work = [index.followed([key], NO_HEADERS)]
        one_step = partial(go_on, work)
        while work:
            assert lines_run(one_step) < 200_000


def go_on(work: list[Steps[list[Binding]]]) -> None:
    """Do one step; nothing is left after the last."""
    try:
        next(work[0])
    except StopIteration:
        work.clear()


def test_a_match_costs_by_the_words_of_its_key() -> None:
    """Not by the number of bindings."""

    def lines(count: int) -> int:
        index = BindingIndex("topic", bound(*(f"a.*.{n}.#" for n in range(count))))
        finished(index.followed(["a.b.0"], NO_HEADERS))
        return lines_run(lambda: finished(index.followed(["a.b.7.d"], NO_HEADERS)))

    assert lines(2_000) < 2 * lines(20)


def test_large_numbers_are_combined_in_steps() -> None:
    """Lines do not tell what that costs: it is by the places of all patterns."""
    patterns = TopicPatterns()
    finished(patterns.add(f"#.{n}" + ".a" * 120 for n in range(3_000)))
    key = "a." * 100
    finished(patterns.matching(key))  # what is known of its words is made
    assert sum(1 for _ in patterns.matching(key)) > 10


def test_what_is_remembered_of_words_has_little_room() -> None:
    patterns = TopicPatterns()
    finished(patterns.add(f"{n}" + ".a" * 100 for n in range(1_000)))
    most = 0
    tracemalloc.start()
    try:
        for n in range(1_000):
            finished(patterns.matching(str(n)))
            most = max(most, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert 500_000 < most < 2_000_000


def test_words_that_are_in_no_pattern_push_nothing_out() -> None:
    """A publisher may make up as many as it likes."""
    patterns = TopicPatterns()
    finished(patterns.add(f"{n}" + ".a" * 100 for n in range(1_000)))
    for key in ("0.a", *(f"x{n}" for n in range(1_000))):
        finished(patterns.matching(key))
    assert lines_run(lambda: finished(patterns.matching("0.a"))) < 1_000
