"""Long lists on pages: searched, sorted, and a page of them at a time; the address says which."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from segments.words import whole_number
from streamd.console.tables import Head
from streamd.net import threads
from streamd.net.turns import in_turns

Item = TypeVar("Item")

PAGE_SIZE = 50
_LARGE = 20_000  # items that are sorted in a thread
_MOST_PAGES = 10**9


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a list.

    Attributes:
        title: on the page.
        key: by which the list is sorted; None where it cannot be.
        is_number: it is set to the right, and the largest comes first.
    """

    name: str
    title: str
    key: Callable[[Item], Any] | None = None
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Listing(Generic[Item]):
    """A page of a list.

    Attributes:
        items: on this page.
        num_all, num_found: items in all, and those whose name has the text that is looked for.
        page, num_pages: counted from 1.
        wanted: the text that is looked for.
        sort: the column that it is sorted by.
        is_descending: the largest comes first.
    """

    items: list[Item]
    columns: list[Column[Item]]
    num_all: int
    num_found: int
    page: int
    num_pages: int
    wanted: str
    sort: str
    is_descending: bool
    others: dict[str, str]

    @property
    def head(self) -> Head:
        """For its table."""
        return Head(*((column.title, column.is_number) for column in self.columns))

    def query(self, **changes: object) -> dict[str, object]:
        """What the address says behind the path, but for some changes."""
        return {**self.others, "q": self.wanted, **self.order(self.sort), **changes}

    def order(self, column: str) -> dict[str, object]:
        """The order of now."""
        return {"sort": column, "desc": "1" if self.is_descending else None}

    def sorted_by(self, column: Column[Item]) -> dict[str, object]:
        """What the address says when a column's title is clicked: by it, or the other way round."""
        turn = not self.is_descending if column.name == self.sort else column.is_number
        return self.query(sort=column.name, desc="1" if turn else None)


async def list_items(
    request: Request,
    items: Iterable[Item],
    columns: list[Column[Item]],
    name_of: Callable[[Item], str],
    others: Iterable[str] = (),
) -> Listing[Item]:
    """A page of a list, as `q`, `sort`, `desc` and `page` in the address ask for it.

    Args:
        request: the request; what it asks for and there is not is taken for the default.
        items: all of them.
        columns: by the first one the list is sorted where nothing else is asked for.
        name_of: the text of an item that `q` is looked for in, whatever the case.
        others: further parameters that links keep.
    """
    query = request.query_params
    everything = list(items)
    wanted, found = query.get("q", ""), everything
    if wanted:
        small = wanted.casefold()
        found = [item async for item in in_turns(everything) if small in name_of(item).casefold()]
    sortable = {column.name: column for column in columns if column.key is not None}
    column = sortable.get(query.get("sort", ""), next(iter(sortable.values())))
    is_descending = query.get("desc") == "1"
    found = await _sorted(found, column, is_descending=is_descending)
    num_pages = max(1, math.ceil(len(found) / PAGE_SIZE))
    page = min(_page(query.get("page", "")), num_pages)
    return Listing(
        found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE],
        columns,
        len(everything),
        len(found),
        page,
        num_pages,
        wanted,
        column.name,
        is_descending,
        {name: query[name] for name in others if name in query},
    )


async def _sorted(items: list[Item], column: Column[Item], *, is_descending: bool) -> list[Item]:
    key = column.key
    assert key is not None  # noqa: S101 - it is one of those that have one
    keys = [key(item) async for item in in_turns(items)]

    def order() -> list[Item]:
        places = sorted(range(len(keys)), key=keys.__getitem__, reverse=is_descending)
        return [items[place] for place in places]

    return await threads.compute(order) if len(items) > _LARGE else order()


def _page(text: str) -> int:
    return max(1, whole_number(text, most=_MOST_PAGES) or 1)
