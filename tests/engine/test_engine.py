"""What holds for every operation."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from streamd.engine import Caller
from streamd.engine.engine import Call, Engine
from streamd.operations import streams as s
from streamd.operations.connections import CloseConnections
from streamd.operations.declaration import ADMINISTRATORS, Operation
from streamd.operations.errors import NoSuch, Reason, Refused
from tests.support.server import Harness, harness


def declared(kind: type[Any] = Operation) -> set[type[Operation[Any]]]:
    below = {found for child in kind.__subclasses__() for found in declared(child)}
    is_one = kind.NAME and kind.__module__.startswith("streamd.")
    return below | ({kind} if is_one else set())


async def test_each_operation_has_a_handler_a_name_and_a_sentence(tmp_path: Path) -> None:
    async with harness(tmp_path) as server:
        assert server.server.engine.operations == declared()
    names = [kind.NAME for kind in declared()]
    assert len(set(names)) == len(names) > 20
    for kind in declared():
        assert (kind.__doc__ or "").partition("\n")[0].endswith("."), kind
        if kind.NEEDS is None and kind is not CloseConnections:  # that looks at each by itself
            assert not kind.CHANGES, f"{kind}: everybody may change that"


def test_every_operation_and_answer_can_be_sent() -> None:
    for kind in declared():
        msgspec.msgpack.Decoder(kind)
        (base,) = (b for b in kind.__orig_bases__ if hasattr(b, "__args__"))  # type: ignore[attr-defined]
        msgspec.msgpack.Decoder(base.__args__[0])


@pytest.fixture
async def ada(server: Harness) -> Caller:
    """An administrator."""
    directory = server.server.directory
    await directory.put_user("ada", tags=["administrator"])
    account = directory.account("ada")
    assert account is not None
    return Caller(directory, account)


class Lasting(Operation[bool], frozen=True, kw_only=True):
    """Take a while."""

    NEEDS = ADMINISTRATORS


@pytest.mark.parametrize("loses", [False, True])
async def test_what_takes_long_ends_with_the_right_alone(
    server: Harness, ada: Caller, loses: bool
) -> None:
    async def handle(_call: Call, _request: Lasting) -> bool:
        tags = ["monitoring"] if loses else ["administrator", "monitoring"]
        await server.server.directory.put_user("ada", tags=tags)
        await trio.sleep(5)
        return True

    engine = Engine({Lasting: handle}, hosts=())
    if not loses:
        assert await engine.ask(ada, Lasting())
        return
    with pytest.raises(Refused, match="lost the right"):
        await engine.ask(ada, Lasting())
    with pytest.raises(Refused, match="not an administrator") as refused:
        await engine.ask(ada, Lasting())
    assert refused.value.reason is Reason.ACCESS_REFUSED


class Shown(Operation[tuple[str, ...]], frozen=True, kw_only=True):
    """Show what depends on who asks."""


async def test_what_is_shown_is_what_one_may_see_at_its_end(server: Harness, ada: Caller) -> None:
    directory = server.server.directory
    changes = iter((["monitoring"], ["management"]))

    async def handle(call: Call, _request: Shown) -> tuple[str, ...]:
        tags = call.caller.tags
        for change in changes:
            await directory.put_user("ada", tags=change)
            await trio.sleep(5)
        return tags

    engine = Engine({Shown: handle}, hosts=())
    assert await engine.ask(ada, Shown()) == ("management",)
    changes = iter((["administrator"],))
    await directory.remove_user("ada")
    with pytest.raises(Refused, match="is deleted"):
        await engine.ask(ada, Shown())


async def test_a_virtual_host_that_is_gone_is_told_to_those_who_may_know(server: Harness) -> None:
    directory, engine = server.server.directory, server.server.engine
    await directory.put_user("ada", tags=["administrator"])
    await directory.put_user("bob", tags=["management"])
    for name, kind in (("ada", NoSuch), ("bob", Refused)):
        account = directory.account(name)
        assert account is not None
        with pytest.raises(Refused) as refused:
            await engine.ask(Caller(directory, account), s.DeleteStream(vhost="gone", stream="s"))
        assert type(refused.value) is kind
