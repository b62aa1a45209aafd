"""Heads of tables, and cells that say what they stand under: on a phone each row is a card."""

from collections.abc import Callable

from markupsafe import Markup


class Head:
    """The columns of a table, from left to right.

    Args:
        columns: titles, and whether what stands under them are numbers.

    Attributes:
        columns: the same.
    """

    def __init__(self, *columns: tuple[str, bool]) -> None:
        self.columns = columns
        self._cells = [
            Markup('{} data-label="{}"').format(Markup(' class="number"') if number else "", title)
            for title, number in columns
        ]

    def row(self) -> Callable[[], Markup]:
        """For a row: gives the attributes of its cells, one after the other."""
        return iter(self._cells).__next__


def columns(*titles: str) -> Head:
    """For templates: a head of titles, # before those of numbers; empty ones are left out."""
    return Head(*((title.removeprefix("#"), title[0] == "#") for title in titles if title))
