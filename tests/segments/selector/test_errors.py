"""Selectors that are refused: where the fault is, and how fast it is found."""

import pytest

from segments.selector import Dialect, SelectorError, parse_property, parse_sql, parse_tags
from segments.selector.patterns import like, parse_pattern
from tests.support.cost import lines_run


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", 1, "a condition is expected"),
        ("a = ", 5, "a property, a value or ( is expected"),
        ("a = 'x", 5, "closing quote"),
        ("[a b = 1", 1, "not a name in brackets"),
        ("[] = 1", 1, "not a name in brackets"),
        ("a == 1", 4, "found =; a property"),
        ("a = 1 AND", 10, "found the end"),
        ("a = NULL", 5, "use IS NULL"),
        ("NULL <> a", 1, "use IS NULL"),
        ("a IN ('x', NULL)", 12, "use IS NULL"),
        ("a IN ()", 7, "is expected"),
        ("a BETWEEN 9 AND 3", 1, "wrong way round"),
        ("a BETWEEN -3 AND -9", 1, "wrong way round"),
        ("5", 1, "a condition is expected, not a value"),
        ("a = 1 AND 'x'", 11, "a condition is expected, not a value"),
        ("a + 1", 1, "a condition is expected, not a number"),
        ("a >= TRUE", 6, "no order"),
        ("(a = 1) < b", 2, "no order"),
        ("1 < a < 9", 7, "do not follow one another"),
        ("a LIKE b", 8, "a pattern is expected"),
        ("a LIKE 'x' ESCAPE '!!'", 1, "one character, not 2"),
        ("a LIKE 'x!' ESCAPE '!'", 1, "ends with its escape"),
        ("a NOT 5", 7, "after NOT"),
        ("UPPER(a) = 'X'", 6, "only UTC()"),
        ("a.b.c = 1", 4, "an operator"),
        ("z.b = 1", 1, "z is not a section"),
        ("p.colour = 1", 3, "properties has message_id"),
        ("a = 1 -- why", 7, "a comment is /*"),
        ("a = 1_0", 5, "not a number"),
        ("a = 1.0E999", 5, "too large"),
        ("a = 99999999999999999999", 5, "numbers reach to"),
        ("in = 1", 1, "write [in]"),
        ("a = 1 b = 2", 7, "an operator or the end"),
    ],
)
def test_refused_with_the_place(text: str, place: int, reason: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_sql(text)
    assert reason in caught.value.reason
    assert caught.value.column == place
    if text:
        _, line, caret = str(caught.value).split("\n")
        assert line.strip() == text.strip()
        assert caret.index("^") == place + 1


def test_the_place_in_a_text_of_lines() -> None:
    with pytest.raises(SelectorError) as caught:
        parse_sql("a = 1\n  AND b == 2\n")
    assert str(caught.value).split("\n") == [
        "line 2, column 10: found =; a property, a value or ( is expected",
        "    AND b == 2",
        "           ^",
    ]


def test_the_place_in_a_long_line() -> None:
    text = " AND ".join(["abc = 1"] * 100) + " AND ="
    with pytest.raises(SelectorError) as caught:
        parse_sql(text)
    _, line, caret = str(caught.value).split("\n")
    assert len(line) < 80
    assert line[caret.index("^")] == "="


LONG = [
    "a = 1 AND " * 100_000,
    "(" * 10_000,
    "(" * 65 + "a = 1" + ")" * 65,
    "NOT " * 1_000 + "a",
    "a = " + "-" * 900 + "1",
    "a = " + "- " * 900 + "1",
    "a = 1" + " + 1" * 900,
    "a = 1" + " * 1" * 500,
    "a = '" + "''" * 2_000,
    "a IN (" + "'x'," * 1_000,
    "a = " + "9" * 4_000,
    "[" * 4_000,
    "a = 0x" + "f" * 4_001,
]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{text[:12]}…{len(text)}")
def test_what_is_too_much_is_refused_at_once(text: str, dialect: Dialect) -> None:
    def parse() -> None:
        try:
            selector = parse_sql(text, dialect)
        except SelectorError:
            pass
        else:
            assert dialect is not Dialect.UNION, "this is too much"
            assert str(selector)

    assert lines_run(parse) < 100_000  # milliseconds


def test_64_levels_are_taken() -> None:
    selector = parse_sql("(" * 64 + "a = 1" + ")" * 64)
    assert str(selector) == "a = 1"
    deep = "NOT (a = 1 OR " * 31 + "b = 2" + ")" * 31
    assert parse_sql(str(parse_sql(deep))) == parse_sql(deep)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("%a%a%a%a%a%a%a%a%a%a%b", "a" * 100_000, False),
        ("%a_a_a_a_a_a_a_a_a_b%", "a" * 200_000, False),
        ("%" * 500 + "x", "a" * 100_000, False),
        ("%_%_%_%_%_%_%", "a" * 100_000, True),
        ("%" + "a_" * 1_000 + "b%", "a" * 100_000, False),
    ],
)
def test_patterns_built_to_backtrack(pattern: str, text: str, expected: bool) -> None:
    test = like(parse_pattern(pattern, None))
    found: list[bool] = []
    assert lines_run(lambda: found.append(test(text))) < 20_000  # far less than one a character
    assert found == [expected]


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "others"),
    [
        ("a%", None, ["a", "ab", "a\nb"], ["", "b", "ba"]),
        ("%a", None, ["a", "ba"], ["", "ab"]),
        ("_", None, ["a", "é", "€", "𝄞", "\n"], ["", "ab"]),
        ("a_c", None, ["abc", "a€c"], ["ac", "abbc"]),
        ("%a_c%", None, ["xabcx", "aaac", "abcabc"], ["ac", "xacx"]),
        ("a%b%c", None, ["abc", "axbxc"], ["acb", "ab"]),
        ("a%a", None, ["aa", "aba"], ["a"]),
        ("100!%", "!", ["100%"], ["100", "1000"]),
        ("a!!b", "!", ["a!b"], ["a!!b"]),
        ("", None, [""], ["a"]),
        ("%", None, ["", "a"], []),
        ("%%", None, ["", "a"], []),
        (".*", None, [".*"], ["ab"]),
    ],
)
def test_like(pattern: str, escape: str | None, matching: list[str], others: list[str]) -> None:
    test = like(parse_pattern(pattern, escape))
    assert [text for text in matching + others if test(text)] == matching


def test_bad_tags_and_properties() -> None:
    for text in ("||", " ", "\ud800", "x" * 5_000):
        with pytest.raises(SelectorError):
            parse_tags(text)
    for name in ("", "properties.colour"):
        with pytest.raises(SelectorError):
            parse_property(name)
    assert str(parse_property("a.b")) == "[a.b]"
    assert str(parse_property("properties.subject")) == "properties.subject"
