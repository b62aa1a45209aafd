"""Patterns of permissions: found as RabbitMQ finds them, and no name makes one slow."""

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from streamd.auth import patterns
from streamd.config import MAX_NAME_BYTES
from streamd.wire.stream import commands as c
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
        (r"^(\w)\1$", "aa", True),  # nor references
        (r"^(\w)\1$", "ab", False),
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
def test_repetitions_within_repetitions(pattern: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not patterns.matches(pattern, LONGEST)
    assert not caplog.records  # it was not tried: that takes for ever
    assert patterns.matches(pattern, LONGEST[:-1]) is (pattern != ".*.*.*.*-orders$")


def test_what_takes_too_long_by_trying_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    pattern = r"^(?!admin)(a|aa)+$"
    assert patterns.matches(pattern, "a")
    assert not patterns.matches(pattern, LONGEST)
    assert "takes too long and allows nothing any more" in caplog.text
    assert not patterns.matches(pattern, "aa")
    assert len(caplog.records) == 1


async def test_answers_that_are_kept_are_small(tmp_path: Path) -> None:
    """A user asks for more names than are kept, each as long as a frame allows."""
    patterns.matches.cache_clear()
    async with harness(tmp_path) as server:
        await add(await server.peer(), "app", "", "", ".*-orders$")
        peer = await enter(server, "app")
        with held(200_000):
            for n in range(8):
                await peer.ask(c.Metadata, (f"{n}" + "a" * 65_000,))


async def test_a_pattern_is_checked_when_it_is_set(peer: Peer) -> None:
    answer = await manage(peer, "permission.set", user="guest", vhost="/", read="(?<!")
    assert "is not a regular expression" in answer.reason
