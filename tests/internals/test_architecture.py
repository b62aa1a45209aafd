"""The page on the architecture says what the code is and does."""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.writer import CatalogWriter
from streamd.broker.streams.log_life import LogLife, StreamState
from streamd.broker.streams.log_writer import LogWriter, WriterState
from streamd.connections.ready_queue import ConsumerState, QueuedConsumer
from streamd.wire.amqp091.states import ChannelState, State as AmqpState
from streamd.wire.stream import commands as c
from tests.internals import tables
from tests.internals.walks import Trace, record
from tests.support.amqp import open_peer
from tests.support.server import OK, Harness, Peer
from tests.test_boundaries import LAYERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "architecture.md").read_text()
MACHINES: dict[str, tuple[type[Enum], type]] = {
    "A stream": (StreamState, LogLife),
    "The writer of an open stream": (WriterState, LogWriter),
    "A consumer": (ConsumerState, QueuedConsumer),
}


def section(heading: str) -> str:
    """What is under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of the tables in a text, without the heads."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = lines[number + 1 : number + 2] and lines[number + 1].startswith("|---")
        if line.startswith("| ") and not is_head:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_layers() -> None:
    shown = [frozenset(names(folders)) for _, folders, _ in rows(section("Layers"))]
    assert shown == [frozenset(layer) for layer in reversed(LAYERS)]


def test_owners_are_where_the_page_says() -> None:
    for what, owner, where in rows(section("Owners")):
        text = "".join((ROOT / path).read_text() for path in names(where))
        for name in names(owner):
            is_file = "." not in name and re.search(
                rf"^(?:class|(?:async )?def) {name}\b", text, re.MULTILINE
            )
            assert is_file or f"{name} = " in text or name == "lock", f"{what}: {name}"


def test_every_file_that_is_named_exists() -> None:
    paths = set(re.findall(r"`((?:streamd|segments|tests|clients)/[\w./]+)`", PAGE))
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def defined() -> set[str]:
    """Functions and methods of the product: `name` and `Class.name`."""
    found = set()
    for folder in ("streamd", "segments"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found |= {f"{node.name}.{n.name}" for n in ast.walk(node) if hasattr(n, "name")}
    return found


def test_every_method_that_is_named_exists() -> None:
    known = defined()
    named = {name for name in names(PAGE) if re.fullmatch(r"[A-Z]\w*[a-z]\w*\.[a-z_]\w*", name)}
    assert named - known == set()
    assert len(named) > 30


# -- the walks


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    return record(tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize(
    ("number", "heading"),
    list(
        enumerate(
            (
                "A published message, from the socket to its confirm",
                "A chunk, from the log to a filtered consumer",
            )
        )
    ),
)
def test_the_walks_are_what_is_called(
    traces: tuple[Trace, Trace], number: int, heading: str
) -> None:
    calls = iter(traces[number])
    for _, what, where in rows(section(heading)):
        step = tuple(names(where))
        assert step in calls, f"{what}: {where} is not called after the step before it"


# -- states


def test_the_states_of_connections() -> None:
    text = section("Connection of the stream protocol")
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        *tables.stream_states()
    ]
    text = section("Connection and channel of AMQP 0-9-1")
    shown = [line for line in text.splitlines() if re.match(r"\| (connection|channel) \|", line)]
    assert shown == [*tables.amqp_states()]
    text = section("Connection of AMQP 1.0")
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        *tables.amqp10_states()
    ]
    # Beside the tables, and in the text above them.
    assert {state for _, state in tables.state_changes(AmqpState)} == {
        "CONNECTED",  # where one of the stream protocol begins
        "GREETING",
        "STARTING",
        "GREETING_AGAIN",  # this and the last one of AMQP 1.0
        "CLOSING",
        "CLOSED",
    }
    assert {state for _, state in tables.state_changes(ChannelState)} == {"NONE", "CLOSING"}


def changes(heading: str) -> Iterator[tuple[str, str, str]]:
    """From, to and by whom, one for each combination."""
    for before, after, by in rows(section(heading)):
        for name in names(by):
            for state in names(before) or [before]:
                yield state, names(after)[0], name


@pytest.mark.parametrize("heading", MACHINES)
def test_every_change_of_a_state_is_on_the_page(heading: str) -> None:
    shown = {(by, after) for _, after, by in changes(heading)}
    assert shown == tables.state_changes(MACHINES[heading][0])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[tuple[str, str]]]:
    """Changes of states while a test runs."""
    found: dict[str, set[tuple[str, str]]] = {}
    for heading, (_, owner) in MACHINES.items():
        found[heading] = set()
        monkeypatch.setattr(owner, "state", Watched(found[heading]), raising=False)
    return found


class Watched:
    """An attribute whose changes are written down."""

    def __init__(self, found: set[tuple[str, str]]) -> None:
        self._found = found

    def __get__(self, instance: object, owner: type) -> Enum:
        return instance.__dict__["state"]  # type: ignore[no-any-return]

    def __set__(self, instance: object, value: Enum) -> None:
        before = instance.__dict__.get("state")
        self._found.add(("new" if before is None else before.name, value.name))
        instance.__dict__["state"] = value


async def test_the_changes_that_happen_are_on_the_page(
    seen: dict[str, set[tuple[str, str]]], server: Harness, peer: Peer
) -> None:
    await use_streams(server, peer)
    for heading, found in seen.items():
        shown = {(before, after) for before, after, _ in changes(heading)}
        expected = {pair for pair in found if ("any", pair[1]) not in shown}
        assert expected <= shown, heading
        assert len(found) > 2, f"{heading}: too little happened"


async def use_streams(server: Harness, peer: Peer) -> None:
    """A stream's life, with consumers of both protocols."""
    await peer.create("s")
    await peer.subscribe("s")
    amqp = await open_peer(server)
    await amqp.consume("s", "c", prefetch=2, x_stream_offset="first")
    await amqp.store("s", *(b"%d" % n for n in range(20)))
    await amqp.deliveries(2)
    await wait_all_tasks_blocked()
    assert await peer.code(c.Unsubscribe, 1) == OK
    await amqp.stream.aclose()
    await wait_all_tasks_blocked()
    await server.host.find("s").life.close()
    await peer.subscribe("s")
    await peer.code(c.Delete, "s")


async def test_turns_of_the_catalog(tmp_path: Path) -> None:
    text = PAGE.split("<!-- two turns -->\n```text\n")[1].split("```")[0]
    expected = re.findall(r"^(\w)  (check|commit|carry out)", text, re.MULTILINE)
    writer = CatalogWriter(Catalog(str(tmp_path)))
    done: list[tuple[str, str]] = []
    is_asked = trio.Event()

    async def change(name: str) -> None:
        async with writer.turn(lambda: done.append((name, "check"))) as turn:
            await is_asked.wait()
            await turn.commit(lambda _: done.append((name, "commit")))
            done.append((name, "carry out"))

    async with trio.open_nursery() as nursery:
        for name in "AB":
            nursery.start_soon(change, name)
            await wait_all_tasks_blocked()
        is_asked.set()
    writer.close()
    assert done == expected


def test_one_way_into_a_thread() -> None:
    shown = [path for path in (ROOT / "streamd").rglob("*.py") if "to_thread." in path.read_text()]
    ours = [path for path in shown if "demo" not in path.parts]
    assert ours == [ROOT / "streamd" / "net" / "threads.py"]


def test_types_are_learned_before_there_are_threads() -> None:
    """What is decoded in threads has a decoder of its module; see segments/store/fields.py."""
    for path in (*(ROOT / "segments").rglob("*.py"), *(ROOT / "streamd/broker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".decode"):
                assert "type" not in {one.arg for one in node.keywords}, f"{path}:{node.lineno}"
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                made = [one for one in map(ast.unparse, function.body) if "fields.reader(" in one]
                assert not made, f"{path}:{function.lineno}"


def test_the_tasks_of_the_supervisor() -> None:
    text = PAGE.split("| Task | |\n|---|---|\n")[1].split("\n\n")[0]
    assert {name for task, _ in rows(text) for name in names(task)} == tables.background_tasks()
