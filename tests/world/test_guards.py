"""Patches that take guards away apply; and some worlds miss them."""

from collections import Counter
from pathlib import Path

import pytest

from tests.world.guard_list import GUARDS
from tests.world.guards import Guard, find

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.rule)
def test_each_can_be_taken_away(guard: Guard) -> None:
    text = (_ROOT / guard.file).read_text()
    compile(guard.removed_from(text), guard.file, "exec")


def test_each_rule_is_there_once() -> None:
    assert not [rule for rule, count in Counter(g.rule for g in GUARDS).items() if count > 1]


@pytest.mark.parametrize(
    "rule",
    ["segments are synced by a flush", "a file is synced before it replaces another"],
)
def test_worlds_miss_some(rule: str) -> None:
    (guard,) = (guard for guard in GUARDS if guard.rule == rule)
    assert find(guard, range(1, 9)).seed
