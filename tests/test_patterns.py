"""Patterns of permissions: found as RabbitMQ finds them, and no name makes one slow."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from streamd import patterns
from streamd.config import MAX_NAME_BYTES
from streamd.wire.stream import ResponseCode, commands as c
from tests.auth.test_users import add, enter, manage
from tests.support.server import Peer, harness
from tests.test_limits import held

LONGEST = "a" * (MAX_NAME_BYTES - 1) + "b"


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("", "a", False),
        (".*", "", True),
        ("^app-", "app-orders", True),
        ("^app-", "my-app-orders", False),
        ("orders$", "app-orders", True),
        ("(?i)^APP", "app", True),
        ("^(?!admin-)", "app", True),  # RE2 has no lookahead
        ("^(?!admin-)", "admin-app", False),
        ("^(?!.*secret).*$", "app-secret", False),
        ("(?i)^(?=.*eu)(?!ADMIN|ops)(app|log)", "app-EU", True),
        ("(?i)^(?=.*eu)(?!ADMIN|ops)(app|log)", "Admin-EU", False),
        (r"\A(?!a[^)|]b)a", "a)b", True),
        (r"^(?!a[[:digit:])]b)a", "a)b", False),
        (r"^(?!\))", ")", False),
        ("^(?!x$)", "x", False),
        ("^(?!x$)", "x\n", True),
        # What cannot be bounded, or not be taken apart.
        (r"^(\w)\1$", "aa", None),
        ("^((?!secret).)*$", "a", None),
        ("^(?!(?!a)b)", "a", None),
        ("^(?!a)b|c", "c", None),
        ("(?!a)", "a", None),
        ("^(?!a", "a", None),
        ("^(?!a))", "a", None),
        ("^(?!a)|(?:", "a", None),
        ("^(?!a)*", "a", None),
        ("a(?<!b)$", "a", None),
        ("^ü.$", "üö", True),
        (".*", "\udcff", True),
        ("^\udcff$", "\udcff", False),
        ("[", "[", None),
        ("(?<!", "a", None),
    ],
)
def test_found_as_a_regular_expression(pattern: str, name: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(patterns.PatternError):
            patterns.compiled(pattern)
    else:
        assert patterns.matches(pattern, name) is expected


def _is_one(text: str) -> bool:
    try:
        re.compile(text)
        patterns.compiled(text)
    except (re.error, patterns.PatternError):
        return False
    return True


@given(
    st.text("ab.*^$|()?", max_size=8).filter(_is_one),
    st.text("ab\n.", max_size=8).filter(lambda name: not name.endswith("\n")),
)
def test_the_same_as_by_trying(pattern: str, name: str) -> None:
    assert patterns.matches(pattern, name) is (
        bool(pattern) and re.search(pattern, name) is not None
    )


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", ".*.*.*.*-orders$", "(.*a){20}$"])
def test_repetitions_within_repetitions(pattern: str) -> None:
    assert not patterns.matches(pattern, LONGEST)
    assert patterns.matches(pattern, LONGEST[:-1]) is (pattern != ".*.*.*.*-orders$")


_PARTS = st.lists(st.sampled_from(["a", "b", ".", "*", "|", "(", ")", "[b)", "]", "$", "\\)"])).map(
    "".join
)


@given(
    st.lists(st.tuples(st.sampled_from(["(?=", "(?!"]), _PARTS), min_size=1, max_size=3),
    _PARTS,
    st.text("ab)", max_size=5),
)
@example([("(?!", "a")], "b|a", ")a")
def test_lookahead_means_what_it_means_elsewhere(
    looks: list[tuple[str, str]], rest: str, name: str
) -> None:
    """A pattern that is taken, whatever is in brackets in it, finds what Python finds."""
    pattern = "^" + "".join(f"{kind}{part})" for kind, part in looks) + rest
    try:
        expected = re.search(pattern, name) is not None
        patterns.compiled(pattern)
    except (re.error, patterns.PatternError):
        return
    assert patterns.matches(pattern, name) is expected


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?<=a)b", "lookahead is taken right after \\^ alone, as in '\\^\\(\\?!secret\\)"),
        ("^(?!a)b|c", "alternatives follow a lookahead without brackets"),
        ("(?:.?){1000}" * 9, "pattern too large"),
        ("^" + "(?=.{900})" * 40, "pattern too large"),
        ("a" * 40_000, "it has 40,000 letters, expected 32,768 at most"),
    ],
)
async def test_one_that_cannot_be_bounded_is_refused_when_it_is_set(
    peer: Peer, pattern: str, said: str
) -> None:
    answer = await manage(peer, "permission.set", user="guest", vhost="/", read=pattern)
    assert re.search(f"is not a regular expression that is taken: .*{said}", answer.reason)


async def test_one_that_was_taken_before_allows_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(tmp_path) as server:
        await add(await server.peer(), "app", ".*", ".*", ".*")
    catalog = sqlite3.connect(tmp_path / "catalog.sqlite")
    with closing(catalog), catalog:
        catalog.execute("UPDATE permissions SET read = '(a|b)(?!c)' WHERE user = 'app'")
    async with harness(tmp_path) as server:
        peer = await enter(server, "app")
        assert await peer.code(c.Create, "ab", ()) == ResponseCode.OK
        assert await peer.code(c.StreamStats, "ab") == ResponseCode.ACCESS_REFUSED
    (line,) = (one for one in caplog.messages if "app" in one)
    assert "may read nothing in virtual host /: the permission '(a|b)(?!c)' is not" in line


async def test_answers_that_are_kept_are_small(tmp_path: Path) -> None:
    """A user asks for more names than are kept, each as long as a frame allows."""
    patterns.matches.cache_clear()
    async with harness(tmp_path) as server:
        await add(await server.peer(), "app", "", "", ".*-orders$")
        peer = await enter(server, "app")
        with held(200_000):
            for n in range(8):
                await peer.ask(c.Metadata, (f"{n}" + "a" * 65_000,))
