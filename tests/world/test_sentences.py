"""Sentences that promise something stand on their pages, and somebody watches over each."""

import re
from pathlib import Path

import pytest

from tests.world.sentences import OTHERS, SENTENCES
from tests.world.witness import PROMISES

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", SENTENCES)
def test_each_is_on_its_page(page: str) -> None:
    text = " ".join((_ROOT / page).read_text().split())
    assert [sentence for sentence in SENTENCES[page] if sentence not in text] == []


def test_each_promise_of_the_table_is_there() -> None:
    page = "docs/internals/durability.md"
    rows = re.findall(r"^\| P\d+ \| ([^|]+) \|", (_ROOT / page).read_text(), re.MULTILINE)
    assert len(rows) > 10
    assert [row for row in rows if row not in SENTENCES[page]] == []


@pytest.mark.parametrize("page", SENTENCES)
def test_each_is_watched(page: str) -> None:
    watched = PROMISES.keys() | OTHERS
    held = set(SENTENCES[page].values()) - watched
    assert [path for path in held if not (_ROOT / path).is_file()] == []
