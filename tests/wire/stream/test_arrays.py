"""Arrays in requests: how many items they may have, and what these take in memory."""

import gc
import tracemalloc
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given

from streamd.wire.stream import codec, commands as c
from streamd.wire.stream.errors import RemoteProtocolError
from streamd.wire.stream.fields import MAX_ITEMS, CommandVersions, Pair
from tests.support import memory
from tests.wire.stream.strategies import COMMANDS

KINDS = get_args(c.ClientCommand)
SMALL: dict[Any, Any] = {int: 1, str: "", bytes: b"", tuple[str, ...]: ""}
SMALL |= {tuple[Pair, ...]: Pair("", ""), tuple[CommandVersions, ...]: CommandVersions(*[999] * 3)}


def arrays_of(kind: type[Any]) -> list[str]:
    hints = get_type_hints(kind, include_extras=True)
    found = {name: get_args(hints[name])[1] for name in kind.__struct_fields__}
    return [name for name, field in found.items() if field.item is not None]


def encoded(kind: type[Any], numbers: dict[str, int]) -> bytes:
    """A command with so many items in its arrays, without its size."""
    hints = get_type_hints(kind)
    hints["offset"] = int
    values = {
        name: (SMALL[hints[name]],) * numbers[name]
        if name in numbers
        else c.f.NO_OFFSET
        if name == "offset"
        else SMALL[hints[name]]
        for name in kind.__struct_fields__
    }
    return codec.encode(kind(**values))[codec.SIZE_BYTES :]


WIDE = [(kind, name) for kind in KINDS for name in arrays_of(kind)]


def test_the_commands_with_arrays() -> None:
    assert {kind for kind, _ in WIDE} >= {c.Metadata, c.CreateSuperStream, c.Subscribe, c.Manage}


@pytest.mark.parametrize(("kind", "name"), WIDE)
def test_a_limit(kind: type[Any], name: str) -> None:
    most = codec.decode(encoded(kind, dict.fromkeys(arrays_of(kind), 1) | {name: MAX_ITEMS}))
    assert len(getattr(most, name)) == MAX_ITEMS
    over = encoded(kind, dict.fromkeys(arrays_of(kind), 1) | {name: MAX_ITEMS + 1})
    with pytest.raises(RemoteProtocolError, match=f"field {name} of .* more than 4,000 items"):
        codec.decode(over)


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in WIDE}, key=repr))
def test_memory_of_tiny_items(kind: type[Any]) -> None:
    names = arrays_of(kind)
    frame = encoded(kind, dict.fromkeys(names, MAX_ITEMS))
    codec.decode(frame)
    gc.collect()
    tracemalloc.start()
    command = codec.decode(frame)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(names) <= memory.ARRAYS
    assert highest < len(frame) + len(names) * MAX_ITEMS * memory.ITEM
    del command


@given(COMMANDS)
def test_encoded_in_steps(command: c.Command) -> None:
    steps = codec.encode_in_steps(command)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == codec.encode(command)


def test_long_arrays_are_encoded_in_steps() -> None:
    command = c.MetadataResponse(1, (), (c.f.StreamMetadata("s", 1, 0, ()),) * 3_500)
    steps = codec.encode_in_steps(command)
    assert [next(steps) for _ in range(3)] == [None] * 3
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == codec.encode(command)
