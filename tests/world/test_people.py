"""Worlds of people, and that what is broken there is noticed."""

from collections.abc import Callable
from pathlib import Path
from time import thread_time
from types import SimpleNamespace

import pytest
import trio

from tests.support.server import Harness
from tests.world.agreement import disagreements
from tests.world.costly import _HELD_SECONDS, Watch
from tests.world.doors import DOORS, Broken, Door
from tests.world.history import LOST, NEW, Call
from tests.world.people import People
from tests.world.rights import Deed, Rights, Span
from tests.world.run import Plan, make
from tests.world.witness import Seen, Sent, Witness


@pytest.mark.parametrize(("seed", "parts"), [(1, ("people",)), (2, ("messages", "people"))])
def test_worlds(tmp_path: Path, seed: int, parts: tuple[str, ...]) -> None:
    world = make(Plan(seed, parts), tmp_path)
    assert world.run() == [], world.events
    (people,) = (part for part in world.parts if isinstance(part, People))
    people.histories["d0"].end(people.histories["d0"].begin(Call("create", ("age",)), "x"), _NEW)
    people.histories["d0"].end(people.histories["d0"].begin(Call("create", ("age",)), "x"), _NEW)
    assert people.judge()[0].startswith("every answer is explained")


_NEW = frozenset((NEW,))


def _rights() -> Rights:
    """A right that was there from 10 to 20, away from 22 to 30, and there again."""
    told = Rights()
    told.given["read"] = [Span(10, 20), Span(32, 1 << 60)]
    told.taken["read"] = told.taken["configure"] = [Span(22, 30, seconds=1)]
    told.deeds = [
        Deed("reads", ("read",), sent, answered, is_done=is_done)
        for sent, answered, is_done in (
            *((11, 12, True), (19, 23, True), (23, 24, False), (29, 33, True), (33, 34, True)),
            *((21, 29, True), (19, 21, False), (31, 33, False)),
        )
    ]
    return told


def test_what_rights_allow() -> None:
    assert list(_rights().judge()) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda r: r.deeds.append(Deed("x", ("read",), 23, 24, is_done=True)), "nobody does"),
        (lambda r: r.deeds.append(Deed("x", ("read",), 12, 13, is_done=False)), "what is given"),
        (lambda r: r.grown.append("3 messages"), "no rest is stored"),
        (
            lambda r: r.deeds.append(Deed("x", ("configure",), 21, 25, is_done=True, seconds=2)),
            "nothing waits",
        ),
    ],
)
def test_what_they_do_not(change: Callable[[Rights], None], fault: str) -> None:
    told = _rights()
    change(told)
    assert [found for found in told.judge() if found.startswith(fault)]


def test_answers_that_wait_for_a_store_come_late() -> None:
    told = _rights()
    told.deeds.append(Deed("x", ("configure",), 21, 25, is_done=True, seconds=2))
    told.answers_wait = True
    assert list(told.judge()) == []


async def test_all_agrees(server: Harness) -> None:
    peer = await server.peer()
    await peer.create("s")
    await peer.declare("s")
    await peer.store([b"x"])
    found = disagreements(server)
    assert found
    assert {one.partition(":")[0] for one in found} == {"nothing is left of clients"}
    server.server.broker.catalog._catalog.apply(lambda c: c.remove_streams("/", ["s"]))  # type: ignore[list-item, arg-type]
    assert any("agree: not on streams" in one for one in disagreements(server))


@pytest.mark.parametrize("kind", DOORS)
async def test_a_refusal_needs_a_reason(kind: type[Door]) -> None:
    """A store in trouble is one for what says that a stream is not available, and nothing else."""
    wrong, code = "", 0
    door = kind(
        SimpleNamespace(),  # type: ignore[arg-type]
        lambda: wrong == "machine",
        is_held=lambda: wrong == "store",
    )
    other = next(iter(kind.failures - {kind.unavailable}))

    async def send(_asked: object) -> tuple[int, None]:
        await trio.lowlevel.checkpoint()
        return code, None

    door.send = send  # type: ignore[method-assign]
    for case in (
        ("", kind.unavailable, False),
        ("store", kind.unavailable, True),
        ("store", other, False),
        ("machine", kind.unavailable, True),
        ("machine", other, True),
    ):
        wrong, code, is_explained = case
        if is_explained:
            assert await door.ask("delete", "d0") == LOST
        else:
            with pytest.raises(Broken):
                await door.ask("delete", "d0")


def test_what_is_told_of_other_streams_counts() -> None:
    told = Witness("always")
    other = told.of_another("sales")
    other.sent[Sent("p", 1)] = 0
    other.confirm([Sent("p", 1)], 0)
    assert told.judge() == [
        "nothing confirmed is lost: p:1 was confirmed and is not there (in sales)"
    ]
    other.log.append(Seen(0, Sent("p", 1)))
    assert told.judge() == []


async def test_who_holds_the_loop_is_noticed() -> None:
    box = SimpleNamespace(machine=SimpleNamespace(num_lives=1))
    world = SimpleNamespace(witness=Witness("always"), beside_seconds=0.0, box=box)
    watch = Watch(world)  # type: ignore[arg-type]
    trio.lowlevel.add_instrument(watch)
    try:
        for in_threads in (0.0, 1.0):  # what a thread does holds nobody
            await trio.lowlevel.checkpoint()
            began = thread_time()
            while thread_time() < began + 1.3 * _HELD_SECONDS:
                pass
            world.beside_seconds += in_threads
            await trio.lowlevel.checkpoint()
    finally:
        trio.lowlevel.remove_instrument(watch)
    assert len(world.witness.faults) == 1
    assert "nobody holds the loop" in world.witness.faults[0]
