"""Changes from many clients at once, and from clients that vanish in the middle of one."""

import itertools
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

from streamd.auth.administration import Administration
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.declared.standing_selectors import parse_standing
from streamd.config import Config
from streamd.net import threads
from streamd.operations.errors import Refused
from streamd.operations.routing import Binding, ExchangeRow, ExchangeType, as_super_stream
from streamd.server import open_server
from tests.support.marked import ONE, TWO, matching, message, of_group, plain
from tests.support.server import Harness, harness
from tests.support.syncs import work_beside

_STEPS_BETWEEN = 20  # changes of selectors, and before each is committed: others publish

Action: TypeAlias = Callable[[Harness], Awaitable[object]]


def administration(server: Harness) -> Administration:
    return Administration(server.server.broker, server.server.directory)


def state(server: Harness) -> dict[str, Any]:
    """What is in memory; there has to be a folder for each stream that was used, and no other."""
    hosts = server.server.broker.virtual_hosts
    rows = [host.row(name) for host in hosts.values() for name in host.names()]
    folders = {(f.parent.name.replace("%2F", "/"), f.name) for f in _folders(server)}
    assert {(row.virtual_host, row.name) for row in rows if row.has_files} <= folders
    assert folders <= {(row.virtual_host, row.name) for row in rows}
    assert server.server.broker._resources.quota.used == len(rows)
    return {
        "streams": [row._replace(has_files=False) for row in rows],
        "exchanges": {n: host.topology.rows() for n, host in hosts.items()},
        "super streams": {n: list(host.super_streams.rows()) for n, host in hosts.items()},
        "bindings": {
            n: [
                sorted(map(str, host.topology.bindings_from(row.name)))
                for row in host.topology.rows()
            ]
            for n, host in hosts.items()
        },
        "selectors": {
            (n, s): host.find(s).standing.rows() for n, host in hosts.items() for s in host.names()
        },
        "users": [(user.name, user.tags) for user in server.server.directory.users()],
        "permissions": server.server.directory.permissions(),
    }


def _folders(server: Harness) -> list[Path]:
    return list(server.data.glob("streams/*/*"))


async def prepare(server: Harness) -> None:
    host = server.host
    await host.create("s", [])
    await host.create_super_stream("i", [("0", "i-0"), ("1", "i-1")], [])
    await host.exchanges.bind(Binding("/", "i", "i-0", False, "again", {}))
    await host.exchanges.bind(Binding("/", "amq.topic", "s", False, "#", {}))
    await host.exchanges.bind(Binding("/", "amq.topic", "i", True, "#", {}))
    for name, destination in (("auto", "s"), ("chain", "auto")):  # they go with the stream
        row = ExchangeRow("/", name, ExchangeType.TOPIC, True, True, False, "")
        await host.exchanges.declare(row)
        await host.exchanges.bind(Binding("/", name, destination, name == "chain", "#", {}))
    await host.settings.put_selector("s", parse_standing("g", "union", "a = 1"))
    await administration(server).add_virtual_host("other", "guest")
    other = server.server.broker.virtual_hosts["other"]
    await other.create("o", [])
    await other.create_super_stream("p", [("0", "p-0")], [])


def _nothing() -> None:
    pass


ACTIONS: dict[str, Action] = {
    "create": lambda server: server.host.create("new", [("max-age", "1h")]),
    "create_super_stream": lambda server: server.host.create_super_stream(
        "j", [("0", "j-0"), ("1", "j-1")], []
    ),
    "delete": lambda server: server.host.delete("s", _nothing),
    "delete a partition": lambda server: server.host.delete("i-0", _nothing),
    "delete_super_stream": lambda server: server.host.delete_super_stream("i", _nothing),
    "set_arguments": lambda server: server.host.settings.set_arguments("s", [("max-age", "1h")]),
    "put_selector": lambda server: server.host.settings.put_selector(
        "s", parse_standing("h", "union", "b = 1")
    ),
    "remove_selector": lambda server: server.host.settings.remove_selector("s", "g"),
    "declare": lambda server: server.host.exchanges.declare(
        as_super_stream("/", "x"), super_stream=False
    ),
    "declare a super stream": lambda server: server.host.exchanges.declare(
        as_super_stream("/", "x"), super_stream=True
    ),
    "drop": lambda server: server.host.exchanges.delete("i", if_unused=False),
    "bind": lambda server: server.host.exchanges.bind(Binding("/", "i", "s", False, "k", {})),
    "unbind": lambda server: server.host.exchanges.unbind(
        Binding("/", "i", "i-0", False, "again", {})
    ),
    "add_virtual_host": lambda server: administration(server).add_virtual_host("v", "guest"),
    "remove_virtual_host": lambda server: administration(server).remove_virtual_host("other"),
    "put_user": lambda server: server.server.directory.put_user("ada", b"x", ["management"]),
    "remove_user": lambda server: server.server.directory.remove_user("bob"),
    "put_permission": lambda server: administration(server).put_permission(
        PermissionRow("bob", "other", "", "", ".*")
    ),
}


async def like_a_thread(work: Callable[..., Any], *arguments: object) -> Any:
    """A cancelled caller goes on to its end, as with a thread that is not abandoned."""
    await trio.lowlevel.checkpoint()
    result = work(*arguments)
    await trio.lowlevel.cancel_shielded_checkpoint()
    return result


async def steps(server: Harness, action: Action, number: int) -> bool:
    """Run an action, cancelled after a number of steps; returns whether it had ended by then."""
    is_through = False

    async def act() -> None:
        nonlocal is_through
        await action(server)
        is_through = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(act)
        for _ in range(number):
            await trio.lowlevel.cancel_shielded_checkpoint()
        was_through = is_through
        nursery.cancel_scope.cancel()
    return was_through


@pytest.mark.parametrize("name", ACTIONS)
async def test_cancelled_at_each_step(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is that before or after, the same in memory, in the catalog and on the disk."""
    found = []
    for number in itertools.count():
        folder = tmp_path / str(number)
        async with harness(folder) as server:
            await prepare(server)
            await server.server.directory.put_user("bob", b"x", [])
            if number == 0:
                found.append(state(server))
            monkeypatch.setattr(threads, "in_thread", like_a_thread)
            was_through = await steps(server, ACTIONS[name], number)
            found.append(state(server))
        async with harness(folder) as server:
            assert state(server) == found[-1]
        if was_through:
            break
    before, after = found[0], found[-1]
    assert before != after
    assert all(one in (before, after) for one in found)
    assert found.index(after) >= 2, "cancelled at once, it should not have happened"


async def _outcome(action: Callable[[], Awaitable[object]]) -> str:
    try:
        await action()
    except Refused as refused:
        return refused.reason.name
    return "done"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *itertools.combinations_with_replacement(
            ["create", "delete", "create_super_stream", "delete_super_stream"], 2
        ),
        ("declare", "declare a super stream"),
        ("drop", "bind"),
        ("delete_super_stream", "bind"),
        ("delete a partition", "delete_super_stream"),
        ("put_permission", "remove_user"),
        ("put_permission", "remove_virtual_host"),
        ("add_virtual_host", "add_virtual_host"),
        ("remove_virtual_host", "remove_virtual_host"),
        ("set_arguments", "delete"),
        ("put_selector", "delete"),
    ],
)
async def test_two_at_once_are_as_one_after_the_other(tmp_path: Path, one: str, other: str) -> None:
    async def run(folder: Path, order: tuple[str, str], lead: int | None) -> Any:
        """Run both; the second begins after some steps of the first; with None, after its end."""
        outcomes: dict[int, str] = {}

        async def act(number: int, name: str) -> None:
            outcomes[number] = await _outcome(lambda: ACTIONS[name](server))

        async with harness(folder) as server:
            await prepare(server)
            await server.server.directory.put_user("bob", b"x", [])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(act, 0, order[0])
                for _ in range(lead or 0):
                    await trio.lowlevel.checkpoint()
                if lead is None:
                    await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(act, 1, order[1])
            found = state(server)
        async with harness(folder) as server:
            assert state(server) == found
        return sorted(outcomes.values()), found

    orders = [(one, other), (other, one)]
    allowed = [await run(tmp_path / f"{n}", order, None) for n, order in enumerate(orders)]
    for (n, order), lead in itertools.product(enumerate(orders), range(0, 6, 2)):
        assert await run(tmp_path / f"{n}-{lead}", order, lead) in allowed


async def test_two_administrators_do_not_remove_each_other(server: Harness) -> None:
    directory = server.server.directory
    await directory.put_user("ada", b"x", ["administrator"])
    outcomes: list[str] = []

    async def remove(name: str) -> None:
        outcomes.append(await _outcome(lambda: directory.remove_user(name)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(remove, "ada")
        nursery.start_soon(remove, "guest")
    assert sorted(outcomes) == ["PRECONDITION_FAILED", "done"]


async def test_the_catalog_cannot_be_written(server: Harness) -> None:
    """Every change is refused then, and leaves everything as it was."""
    await prepare(server)
    await server.server.directory.put_user("bob", b"x", [])
    before = state(server)
    catalog = server.server.broker.catalog._catalog
    catalog._db.execute("PRAGMA query_only = 1")
    for name, action in ACTIONS.items():
        assert await _outcome(partial(action, server)) == "INTERNAL_ERROR", name
        assert state(server) == before, name
    catalog._db.execute("PRAGMA query_only = 0")
    await server.host.create("new", [])


def test_streams_and_users_at_once_in_threads(tmp_path: Path) -> None:
    outcomes: list[str] = []

    async def act(action: Callable[[], Awaitable[object]]) -> None:
        outcomes.append(await _outcome(action))

    async def main() -> None:
        async with open_server(Config(data=str(tmp_path))) as server:
            host, directory = server.broker.virtual_hosts["/"], server.directory
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    name = f"n{number}"
                    nursery.start_soon(act, lambda name=name: host.create(name, []))
                    nursery.start_soon(act, lambda name=name: directory.put_user(name, tags=[]))
            assert len(host.names()) == 40
            assert len(directory.users()) == 41

    trio.run(main)
    assert outcomes == ["done"] * 80


async def _change_selectors(server: Harness) -> None:
    for text in (ONE, None, ONE, TWO, None, ONE):
        if text is None:
            await server.host.settings.remove_selector("s", "g")
        else:
            await server.host.settings.put_selector("s", parse_standing("g", "union", text))
        for _ in range(_STEPS_BETWEEN):
            await trio.lowlevel.checkpoint()


async def _slowly(work: Callable[..., Any], *arguments: object) -> Any:
    for _ in range(_STEPS_BETWEEN):
        await trio.lowlevel.checkpoint()
    return work_beside(work, *arguments)


async def _copies_of_each_step(server: Harness, folder: Path) -> list[Path]:
    """What a kill leaves while one publishes, and another one changes selectors."""
    peer = await server.publisher("s", is_new=True)
    copies: list[Path] = []

    async def publish() -> None:
        for number in itertools.count(1):
            await peer.store([message(0), message(number % 3)], first_id=2 * number)

    async def change() -> None:
        await _change_selectors(server)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        nursery.start_soon(change)
        while True:
            copies.append(folder / f"{len(copies)}")
            shutil.copytree(server.data, copies[-1])
            await trio.lowlevel.checkpoint()
    return copies


async def test_a_kill_at_each_step_hides_no_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selectors come, go and change while others publish; whatever the catalog says then holds."""
    async with harness(tmp_path / "data") as server:
        monkeypatch.setattr(threads, "in_thread", _slowly)
        copies = await _copies_of_each_step(server, tmp_path)
        monkeypatch.undo()
    num_checked = 0
    for folder in copies:
        async with harness(folder) as server:
            rows = server.host.find("s").standing.rows()
            if rows:
                wanted = matching(await plain(server), rows[0].text)
                assert matching(await of_group(server), rows[0].text) == wanted, folder.name
                num_checked += len(wanted)
    assert num_checked > 50
