"""Pages read as they are, on a code host too: what is made from the code is committed in them."""

import re

import pytest

from docs.generated import PARTS, filled, parts_of
from tests.support.pages import Page, documentation, everything

# A role, a target, an item of a definition list: what only Sphinx would understand.
_FOR_SPHINX = re.compile(r"(?<!\S)\{[a-z:]+\}`|^\([\w-]+\)=$|^: ", re.MULTILINE)


def ids(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", [p for p in documentation() if parts_of(p.text)], ids=ids)
def test_generated_parts_are_what_the_code_says(page: Page) -> None:
    if filled(page.text) != page.text:
        pytest.fail(f"the code has changed what {page.name} says: run `make reference`", False)


def test_every_part_is_on_one_page() -> None:
    assert sorted(part for page in documentation() for part in parts_of(page.text)) == sorted(PARTS)


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_nothing_needs_to_be_built_to_be_read(page: Page) -> None:
    assert [block.kind for block in page.blocks if block.kind.startswith("{")] == []
    assert _FOR_SPHINX.findall(page.prose) == []
