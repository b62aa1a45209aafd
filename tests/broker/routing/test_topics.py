"""Patterns of topic exchanges, against a plain definition, and the work they take."""

import itertools

import pytest
from hypothesis import given, strategies as st

from streamd.broker.declared.matching import NO_HEADERS, Binding, ExchangeType
from streamd.broker.routing.binding_index import BindingIndex
from streamd.broker.routing.topics import TopicPattern, is_literal, words_of
from streamd.broker.steps import Steps, Stepwise

WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#", "a#"]), max_size=6).map(".".join)


def plainly(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(plainly(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and plainly(pattern[1:], words[1:])


@given(WORDS, WORDS)
def test_as_defined(pattern: str, key: str) -> None:
    expected = plainly(words_of(pattern), words_of(key))
    assert TopicPattern(pattern).matches(words_of(key)) is expected
    if is_literal(pattern):
        assert expected is (pattern == key)


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


def finished(steps: Steps[list[Binding]]) -> list[Binding]:
    work = Stepwise(steps)
    while not work.is_done:
        work.go_on()
    return work.result


@pytest.mark.parametrize(
    ("patterns", "keys"),
    [
        (["#." * 127 + f"{n}" for n in range(20)], ["a." * 1_000]),
        ([f"#.{n}" for n in range(500)], [f"{n}" for n in range(200)]),
    ],
)
def test_no_step_looks_at_much(patterns: list[str], keys: list[str]) -> None:
    """A message with keys for which every word has to be looked at for every binding."""
    index = BindingIndex("topic", bound(*patterns))
    steps = index.followed(keys, NO_HEADERS)
    words = sum(len(words_of(key)) for key in keys)
    work = len(patterns) * words
    assert 0.5 * work / 3_000 < len(list(itertools.islice(steps, 100_000))) < 3 * work / 1_000
