"""An auto-delete exchange goes with its last binding, whatever takes that away."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamd.operations.routing import Binding, ExchangeRow, ExchangeType
from tests.support.server import Harness, harness


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    """With streams a and b, and these auto-delete exchanges: first → second → a, both → a and b."""
    async with harness(tmp_path) as running:
        host = running.host
        for name in ("a", "b"):
            await host.create(name, [])
        for name, is_durable in (("first", True), ("second", True), ("both", False)):
            await declare(running, name, is_durable=is_durable)
        for source, destination, to_exchange in (
            ("first", "second", True),
            ("second", "a", False),
            ("both", "a", False),
            ("both", "b", False),
        ):
            await bind(running, source, destination, to_exchange=to_exchange)
        yield running


async def declare(server: Harness, name: str, *, is_durable: bool = True) -> None:
    row = ExchangeRow("/", name, ExchangeType.TOPIC, is_durable, True, False, "")
    await server.host.exchanges.declare(row)


async def bind(
    server: Harness, source: str, destination: str, key: str = "k", *, to_exchange: bool = False
) -> None:
    await server.host.exchanges.bind(Binding("/", source, destination, to_exchange, key, {}))


def declared(server: Harness) -> set[str]:
    rows = server.host.topology.rows()
    return {row.name for row in rows if row.name and not row.name.startswith("amq.")}


async def delete(server: Harness, name: str) -> None:
    await server.host.delete(name, lambda: None)


async def test_with_a_stream(server: Harness) -> None:
    """The second goes with its stream, the first because the second was all it led to."""
    await delete(server, "a")
    assert declared(server) == {"both"}
    await delete(server, "b")
    assert declared(server) == set()


async def test_after_a_restart_they_are_gone(tmp_path: Path) -> None:
    async with harness(tmp_path) as server:
        await server.host.create("a", [])
        await declare(server, "x")
        await bind(server, "x", "a")
        await delete(server, "a")
    async with harness(tmp_path) as server:
        assert declared(server) == set()


async def test_not_while_another_binding_is_left(server: Harness) -> None:
    await bind(server, "second", "b")
    await delete(server, "a")
    assert declared(server) == {"first", "second", "both"}
    await server.host.exchanges.unbind(Binding("/", "second", "b", False, "k", {}))
    assert declared(server) == {"both"}


async def test_with_two_bindings_to_one_stream(server: Harness) -> None:
    await bind(server, "second", "a", "another key")
    await delete(server, "a")
    assert declared(server) == {"both"}


async def test_with_an_exchange(server: Harness) -> None:
    await server.host.exchanges.delete("second")
    assert declared(server) == {"both"}


async def test_with_a_super_stream(server: Harness) -> None:
    """Its partitions and itself may be the last that an exchange leads to."""
    await server.host.create_super_stream("i", [("0", "i-0")], [])
    for name, destination, to_exchange in (("p", "i-0", False), ("q", "i", True)):
        await declare(server, name)
        await bind(server, name, destination, to_exchange=to_exchange)
    await server.host.delete_super_stream("i", lambda: None)
    assert declared(server) == {"first", "second", "both"}


async def test_one_that_was_never_bound_stays(server: Harness) -> None:
    await declare(server, "new")
    await delete(server, "b")
    assert "new" in declared(server)


async def test_two_that_lead_to_each_other_stay(server: Harness) -> None:
    for name in ("here", "there"):
        await declare(server, name)
    await bind(server, "here", "there", to_exchange=True)
    await bind(server, "there", "here", to_exchange=True)
    await delete(server, "a")
    assert {"here", "there"} <= declared(server)
    await server.host.exchanges.delete("here")
    assert declared(server) == {"both"}
