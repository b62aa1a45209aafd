"""Patches that take guards away apply, what misses them is there, and some worlds miss them."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.guard_list import GUARDS
from tests.world.guards import WORLD, Guard, fail, find

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.rule)
def test_each_can_be_taken_away(guard: Guard) -> None:
    text = (_ROOT / guard.file).read_text()
    compile(guard.removed_from(text), guard.file, "exec")


def test_each_rule_is_there_once() -> None:
    assert not [rule for rule, count in Counter(g.rule for g in GUARDS).items() if count > 1]


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """What pytest calls the tests of a file or class."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name):
                yield from (f"{name}::{one}" for one in _names(statement.body))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):  # of a state machine
                yield name


def test_what_misses_each_is_there() -> None:
    named = {guard.by.partition("[")[0] for guard in GUARDS if guard.by != WORLD}
    files = {file: Path(_ROOT / file) for file in {name.partition("::")[0] for name in named}}
    tests = {
        f"{file}::{name}"
        for file, path in files.items()
        for name in _names(ast.parse(path.read_text()).body)
    }
    assert named - tests == set()


@pytest.mark.parametrize(
    "rule",
    ["segments are synced by a flush", "a file is synced before it replaces another"],
)
def test_worlds_miss_some(rule: str) -> None:
    (guard,) = (guard for guard in GUARDS if guard.rule == rule)
    assert find(guard, range(1, 9)).seed


def test_tests_miss_some() -> None:
    guard = next(guard for guard in GUARDS if guard.by != WORLD)
    assert fail(guard, [guard.by]).seed
