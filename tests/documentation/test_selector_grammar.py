"""reference/selector-grammar is what the parser and the evaluation do."""

import itertools
import json
import random
import re
from typing import Any

import pytest

from segments.message import Message
from segments.selector import Dialect, SelectorError, parse_tags
from segments.selector.dialects import GRAMMARS, MAX_CHARACTERS, MAX_DEPTH
from segments.selector.evaluate import all_of, any_of, negation
from segments.selector.parser import FIELDS, Parser
from segments.selector.rocketmq import RocketmqParser
from tests.segments.selector.test_cases import outcome
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "reference/selector-grammar.md").read_text()
WORDS = {"M": "true", "N": "false", "U": "unknown", "X": "refused"}
_ROW = re.compile(r"^\| `(.+)` \| `(\{.*\})` \| (\w+) \| (\w+) \| (\w+) \|$", re.MULTILINE)
_TAGS = re.compile(r"^\| `(.+)` \| `([^`]*)` \| (selected|not selected|refused) \|$", re.MULTILINE)


@pytest.mark.parametrize(
    ("condition", "properties", "union", "rocketmq", "amqp"), _ROW.findall(PAGE)
)
def test_each_example(
    condition: str, properties: str, union: str, rocketmq: str, amqp: str
) -> None:
    for dialect, said in zip(Dialect, (union, rocketmq, amqp), strict=True):
        assert WORDS[outcome(condition, json.loads(properties), dialect)] == said, dialect


def test_there_are_examples_in_every_section() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    without = {part.split("\n")[0] for part in sections if not _ROW.search(part)}
    assert without == {"Tag expressions", "Errors", "Limits"}
    assert len(_TAGS.findall(PAGE)) == 5


@pytest.mark.parametrize(("expression", "tag", "said"), _TAGS.findall(PAGE))
def test_each_tag_expression(expression: str, tag: str, said: str) -> None:
    text = expression.replace("\\|", "|")
    message = Message(b"", application_properties={"TAGS": tag}).encode()
    try:
        found = "selected" if parse_tags(text).matcher().matches(message) else "not selected"
    except SelectorError:
        found = "refused"
    assert found == said


def test_the_tables_of_three_valued_logic() -> None:
    of = {"true": True, "false": False, "unknown": None}
    for name, combine in (("AND", all_of), ("OR", any_of)):
        (table,) = re.findall(rf"^\| `{name}` .*\n.*\n((?:\| \*\*.*\n){{3}})", PAGE, re.MULTILINE)
        rows = [re.findall(r"\w+", line) for line in table.splitlines()]
        for (left, *said), (n, right) in itertools.product(rows, enumerate(of)):
            found = combine([lambda _row, v=of[left]: v, lambda _row, v=of[right]: v])([])
            assert found is of[said[n]], (name, left, right)
    (table,) = re.findall(r"^\| `NOT` .*\n.*\n((?:\| \*\*.*\n){3})", PAGE, re.MULTILINE)
    for inner, said in re.findall(r"\*\*(\w+)\*\* \| (\w+)", table):
        assert negation(lambda _row, v=of[inner]: v)([]) is of[said]


def test_limits_and_reserved_words() -> None:
    assert f"{MAX_CHARACTERS:,} characters" in PAGE
    assert f"{MAX_DEPTH} levels" in PAGE
    for dialect, grammar in GRAMMARS.items():
        most = f"{grammar.max_tokens:,}"
        assert f"{most} words" in PAGE or f"({most} in `{dialect}`)" in PAGE
        for word in grammar.reserved:
            assert re.search(rf"[` ]{word}[` ]", PAGE), word
    for fields in FIELDS.values():
        for field in fields:
            assert f'"{field}"' in PAGE


# -- what the grammars derive is taken

_TERMINALS = {
    "number": ("5", "2.5"),
    "string": ("'x'", "''"),
    "bytes": ("0xAB",),
    "name": ("abc", "b"),
    "bracketed": ("[in]", "[a b]"),
}
_TOKEN = re.compile(r'"[^"]*"|\w+|[=,|;()\[\]{}]')


def rules(dialect: str) -> dict[str, Any]:
    """The rules of a dialect; those that its part does not have are those of the union."""
    blocks = dict(
        re.findall(r"^### (\w+)\n.*?^```ebnf\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    )
    text = blocks["union"] if dialect == "union" else ""
    if dialect == "amqp":
        text = blocks["union"]
    found = {}
    for block in (text, blocks[dialect]):
        for rule in filter(str.strip, re.split(r";\n", block)):
            name, _, right = rule.partition("=")
            found[name.strip()] = parse(_TOKEN.findall(right))
    return found


def parse(tokens: list[str]) -> Any:
    """A right side: ("|", parts), (",", parts), ("[", part), ("{", part), or a word."""

    def choice() -> Any:
        parts = [sequence()]
        while tokens and tokens[0] == "|":
            tokens.pop(0)
            parts.append(sequence())
        return ("|", parts)

    def sequence() -> Any:
        parts = [atom()]
        while tokens and tokens[0] == ",":
            tokens.pop(0)
            parts.append(atom())
        return (",", parts)

    def atom() -> Any:
        token = tokens.pop(0)
        if token in "([{":
            inner = choice()
            tokens.pop(0)
            return inner if token == "(" else (token, inner)
        return token

    return choice()


def derive(rule: Any, of: dict[str, Any], chance: random.Random, depth: int) -> list[str]:
    """Some words that a rule derives; the deeper, the fewer."""
    if isinstance(rule, str):
        if rule[0] == '"':
            return [rule[1:-1]]
        if rule in _TERMINALS:
            return [chance.choice(_TERMINALS[rule])]
        return derive(of[rule], of, chance, depth + 1)
    kind, inner = rule
    if kind == ",":
        return [word for part in inner for word in derive(part, of, chance, depth)]
    if kind == "|":  # alternatives with parentheses go deeper
        simple = [part for part in inner if '"("' not in str(part)] if depth > 14 else inner
        return derive(chance.choice(simple or inner), of, chance, depth)
    most = 0 if depth > 14 else 1 if kind == "[" else 2
    times = range(chance.randint(0, most))
    return [word for _ in times for word in derive(inner, of, chance, depth)]


def taken(words: list[str], dialect: Dialect) -> bool:
    """Whether the parser takes them; also where they are only too many or too deep."""
    text = " ".join(words)
    try:
        parser = RocketmqParser(text) if dialect is Dialect.ROCKETMQ else Parser(text, dialect)
        parser.selector()
    except SelectorError as error:
        return "are allowed" in error.reason or "deep" in error.reason
    return True


class Recognizer:
    """Where parts of some words that a rule derives can end."""

    def __init__(self, of: dict[str, Any], words: list[str], dialect: Dialect) -> None:
        self._of, self._words = of, words
        self._reserved = GRAMMARS[dialect].reserved
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def takes_all(self) -> bool:
        return len(self._words) in self.ends("selector", 0)

    def ends(self, rule: Any, at: int) -> frozenset[int]:
        key = (id(rule), at)
        if key not in self._known:
            self._known[key] = frozenset(self._find(rule, at))
        return self._known[key]

    def _find(self, rule: Any, at: int) -> set[int]:
        if isinstance(rule, str):
            if rule[0] != '"' and rule not in _TERMINALS:
                return set(self.ends(self._of[rule], at))
            is_there = at < len(self._words) and self._is(rule, self._words[at])
            return {at + 1} if is_there else set()
        kind, inner = rule
        if kind == "|":
            return set().union(*(self.ends(part, at) for part in inner))
        places = {at}
        if kind == ",":
            for part in inner:
                places = set().union(*(self.ends(part, place) for place in places))
            return places
        found, new = set(places), places
        while new:
            new = set().union(*(self.ends(inner, place) for place in new)) - found
            found |= new
            if kind == "[":
                break
        return found

    def _is(self, rule: str, word: str) -> bool:
        if rule[0] == '"':
            return word == rule[1:-1]
        if rule == "name":
            return word[0].isalpha() and word.upper() not in self._reserved
        return word in _TERMINALS[rule]


@pytest.mark.parametrize("dialect", Dialect)
def test_what_a_grammar_derives_is_taken(dialect: Dialect) -> None:
    of, chance = rules(dialect), random.Random(dialect)
    seen: set[str] = set()
    for _ in range(200):
        words = derive("selector", of, chance, 0)
        assert taken(words, dialect), " ".join(words)
        seen |= set(words)
    wanted = set(re.findall(r'"([^"]+)"', str(of)))
    assert wanted <= seen, wanted - seen


@pytest.mark.parametrize("dialect", [Dialect.UNION, Dialect.AMQP])
def test_what_it_does_not_derive_is_refused(dialect: Dialect) -> None:
    """In RocketMQ's dialect the rest is not read."""
    of, chance = rules(dialect), random.Random(dialect)
    signs = sorted(set(re.findall(r'"([^"]+)"', str(of))))
    larger = [
        text.split() for text in ("b + 5", "b * 5", "- b", "- - 5", "( b )", "NOT b", "b = 5")
    ]
    refused = 0
    for _ in range(300):
        words = derive("selector", of, chance, 0)[:40]
        at = chance.randrange(len(words))
        put = [chance.choice(signs)] * chance.randint(0, 1)
        operands = [n for n, word in enumerate(words) if word in ("5", "2.5", "abc", "b")]
        if operands and chance.random() < 0.6:  # more than stood there, which may be too much
            at = chance.choice(operands)
            put = chance.choice(larger)
        taken_away = 1 if put in larger else chance.randint(0, 1)
        words[at : at + taken_away] = put
        if any(one == "." and two.isupper() for one, two in itertools.pairwise(words)):
            continue  # there, every word is a name
        is_derived = Recognizer(of, words, dialect).takes_all()
        assert taken(words, dialect) == is_derived, " ".join(words)
        refused += not is_derived
    assert refused > 20
