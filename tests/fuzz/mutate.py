"""Changes to a conversation that leave most of it as it is, so that they reach deep.

A conversation is a list of frames. Frames are left out, doubled, swapped, taken from elsewhere;
within one, bytes and numbers change, runs are cut, doubled and put in. What stands around a frame
(its size, its end) is put right again most of the time: else nothing behind it would be looked at.
"""

from collections.abc import Callable, Sequence
from random import Random

Fix = Callable[[bytes], bytes]
ChangeValue = Callable[[bytes, Random], bytes]
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_MOST_CHANGES = 3
_MOST_COPIES = 300
_SPARE = 0.1
_VALUES = 0.5


def changed(
    frames: Sequence[bytes],
    chance: Random,
    fix: Fix,
    spare: Sequence[bytes],
    change_value: ChangeValue,
) -> list[bytes]:
    """A conversation with some changes.

    Args:
        frames: as they were.
        chance: where changes come from.
        fix: makes what is around a frame fit its content again.
        spare: frames that are not part of it, and may come anywhere.
        change_value: makes a frame say something else.
    """
    made = list(frames)
    for _ in range(chance.randint(1, _MOST_CHANGES)):
        if not made or (spare and chance.random() < _SPARE):
            made.insert(chance.randint(0, len(made)), chance.choice(spare) if spare else b"")
            continue
        at = chance.randrange(len(made))
        if chance.random() < _VALUES:
            made[at] = change_value(made[at], chance)
        else:
            chance.choice(_CHANGES)(made, at, chance, fix)
    return made


def _drop(frames: list[bytes], at: int, _chance: Random, _fix: Fix) -> None:
    del frames[at]


def _double(frames: list[bytes], at: int, chance: Random, _fix: Fix) -> None:
    count = 1 if chance.random() < 0.8 else chance.randint(2, _MOST_COPIES)
    frames[at:at] = frames[at : at + 1] * count


def _swap(frames: list[bytes], at: int, chance: Random, _fix: Fix) -> None:
    other = chance.randrange(len(frames))
    frames[at], frames[other] = frames[other], frames[at]


def _insert_other(frames: list[bytes], at: int, chance: Random, _fix: Fix) -> None:
    frames.insert(at, chance.choice(frames))


def _cut_off(frames: list[bytes], at: int, chance: Random, _fix: Fix) -> None:
    """The conversation ends within a frame."""
    frames[at] = frames[at][: chance.randint(0, len(frames[at]))]
    if chance.random() < 0.5:
        del frames[at + 1 :]


def _change_inside(frames: list[bytes], at: int, chance: Random, fix: Fix) -> None:
    frame = bytearray(frames[at])
    for _ in range(chance.randint(1, 3)):
        chance.choice(_CHANGES_INSIDE)(frame, chance.randint(0, len(frame)), chance, frames)
    frames[at] = fix(bytes(frame)) if chance.random() < 0.9 else bytes(frame)


_CHANGES = (_drop, _double, _swap, _insert_other, _cut_off, *[_change_inside] * 8)


def _flip(frame: bytearray, at: int, chance: Random, _frames: list[bytes]) -> None:
    if at < len(frame):
        frame[at] ^= 1 << chance.randrange(8)


def _set_byte(frame: bytearray, at: int, chance: Random, _frames: list[bytes]) -> None:
    if at < len(frame):
        frame[at] = chance.randrange(256)


def _set_number(frame: bytearray, at: int, chance: Random, _frames: list[bytes]) -> None:
    """A number at its limits, or one beside what stands there: lengths, counts, ids."""
    size = chance.choice((1, 2, 4, 8))
    there = int.from_bytes(frame[at : at + size], "big")
    near = there + chance.choice((-1, 1))
    value = near if chance.random() < 0.4 else chance.choice(_NUMBERS)
    if size == 8 and chance.random() < 0.3:
        value = chance.choice(((1 << 63) - 1, 1 << 63, (1 << 64) - 1))
    if at + size <= len(frame):
        frame[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")


def _cut_run(frame: bytearray, at: int, chance: Random, _frames: list[bytes]) -> None:
    del frame[at : at + chance.randint(1, 20)]


def _double_run(frame: bytearray, at: int, chance: Random, _frames: list[bytes]) -> None:
    run = frame[at : at + chance.randint(1, 20)]
    frame[at:at] = run * chance.choice((1, 1, 1, 2, 50))


def _insert_bytes(frame: bytearray, at: int, chance: Random, _frames: list[bytes]) -> None:
    frame[at:at] = chance.randbytes(chance.choice((1, 2, 4, 20)))


def _splice(frame: bytearray, at: int, chance: Random, frames: list[bytes]) -> None:
    """A piece of another frame."""
    other = chance.choice(frames)
    start = chance.randint(0, len(other))
    frame[at : at + chance.randint(0, 8)] = other[start : start + chance.randint(1, 40)]


_CHANGES_INSIDE = (
    _flip,
    _set_byte,
    _set_number,
    _set_number,
    _cut_run,
    _double_run,
    _insert_bytes,
    _splice,
)
