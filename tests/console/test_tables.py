"""Cells say what they stand under; names on the map of a stream do not lie on each other."""

import itertools

from hypothesis import given, strategies as st

from streamd.console import words
from streamd.console.map_names import ROWS, height_of, names_at
from streamd.console.tables import columns
from streamd.operations.server import BEHIND_SECONDS
from streamd.operations.stream_views import Mark
from tests.support.console import Visitor
from tests.support.server import FIRST, Harness


def test_cells_know_their_columns() -> None:
    top = columns("Name", "#Behind <s>", "", "State")
    assert top.columns == (("Name", False), ("Behind <s>", True), ("State", False))
    for _ in range(2):
        td = top.row()
        assert td() == ' data-label="Name"'
        assert td() == ' class="number" data-label="Behind &lt;s&gt;"'
        assert td() == ' data-label="State"'


async def test_each_card_has_the_titles_of_its_table(server: Harness, browser: Visitor) -> None:
    async with server.server.broker.catalog.turn() as turn:
        await server.server.broker.add_virtual_host(turn, "other")
    peer = await server.peer()
    await peer.create("s")
    await peer.declare("s")
    await peer.store([b"x"] * 5)
    await peer.subscribe("s", FIRST, credit=0, name="<reader>")
    connection = (await browser.page("/connections")).select_one("tbody th a")["href"]
    seen = 0
    pages = ("/streams", "/streams/%2F/s", "/connections", "/users", "/users/guest", "/vhosts")
    for path in (*pages, "/", "/permissions", "/exchanges", "/bindings", connection):
        for table in (await browser.page(path)).select("table.cards"):
            titles = [cell.text for cell in table.select("thead th")]
            for row in table.select("tbody tr"):
                labels = [cell["data-label"] for cell in row.select("& > *")]
                assert labels == titles, path
                seen += 1
    assert seen > 20


def test_who_is_late_stands_out() -> None:
    assert words.lag(None) == words.duration(None)
    assert words.lag(BEHIND_SECONDS) == "5 min 0 s"
    assert words.lag(BEHIND_SECONDS + 1) == '<strong class="bad">5 min 1 s</strong>'


MARKS = st.lists(st.builds(Mark, st.floats(0, 100), st.just(0), st.text(max_size=40)), max_size=60)


@given(MARKS)
def test_names_on_the_map_do_not_lie_on_each_other(marks: list[Mark]) -> None:
    names = names_at(marks)
    assert height_of(names) <= ROWS
    for kind, sign in (("wide", 0.75), ("narrow", 2.2)):
        for row in range(ROWS):
            spans = sorted(
                (name.x - len(name.text) * sign, name.x)
                if name.is_left
                else (name.x, name.x + len(name.text) * sign)
                for name in names
                if (name.kind, name.row) == (kind, row)
            )
            assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
            if row == 0:
                inside = [(low, high, mark.x) for low, high in spans for mark in marks]
                assert not any(low < x < high for low, high, x in inside), "marks are seen"
    if marks:
        assert {name.kind for name in names} == {"wide", "narrow"}, "the first has always room"
