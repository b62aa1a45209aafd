"""Empty files in a stream's folder whose names say something that must not be lost with a content.

life-ID     the life of the stream: from its creation to its deletion. One that is deleted and
            created again has another. The store knows the stream under the same id.
ahead-BOOT  readers may have seen messages that were not on the device when the machine went down
            in whose run BOOT it was made, or RESTORED: the log goes on behind a gap then, see
            gaps.py. It goes with an orderly end. RESTORED-EPOCH: the store had nothing of it when
            it was restored, in that epoch.
wal-ID      what is confirmed of life ID may be in a store alone: see tier/wal.py
tier-ID     the store has something of it, so that there has to be a copy of its manifest, see
            tier/local_copy.py
"""

import os
import re
import threading
import time
from collections.abc import Iterable
from pathlib import PurePath

from segments.disk import Disk

LIFE = "life-"
AHEAD = "ahead-"
RESTORED = "restored"  # in the place of BOOT: all that there was is what a store has
STORED = "tier-"
WAL = "wal-"
_NUMBER_DIGITS, _NUMBERS = 16, 1 << 63
_MOST_EPOCH = 0xFFFFF
_making, _last_ms = threading.Lock(), 0
_HEX = re.compile(r"[0-9a-f]+")


def marked(names: Iterable[str], kind: str) -> list[str]:
    """What the marks of a kind say among the names of the files in a folder, in order."""
    return sorted(name.removeprefix(kind) for name in names if name.startswith(kind))


def put_mark(disk: Disk, folder: str, kind: str, what: str) -> None:
    """Make a mark where there is none; the folder is to be synced afterwards.

    Raises:
        StorageError: the system refused.
    """
    name = kind + what
    if name not in disk.list(folder):
        disk.create(str(PurePath(folder, name))).close()


def remove_mark(disk: Disk, folder: str, name: str) -> None:
    """Remove a mark; on the device when this returns.

    Raises:
        StorageError: the system refused.
    """
    if name in disk.list(folder):
        disk.remove(str(PurePath(folder, name)))
        disk.sync_folder(folder)


def restored_in(boot: str) -> int:
    """The epoch in which a stream was restored of which the store had nothing; 0 for others."""
    name, _, epoch = boot.partition("-")
    return int(epoch) if name == RESTORED and epoch.isdecimal() else 0


def new_life() -> str:
    """16 hexadecimal digits: the time in ms and a random number, so that later ones are greater.

    Those of a process are, also within a millisecond, and when the clock is set back.
    """
    return f"{_next_ms():012x}{os.urandom(2).hex()}"


def placed_life(epoch: int) -> str:
    """The same of a stream that several servers may write, one after the other.

    It is greater than all of lower epochs, whatever the clocks of those who have declared these.

    Args:
        epoch: of who declares it; nobody else has the same.
    """
    return f"{min(epoch, _MOST_EPOCH):05x}{_next_ms():011x}"


def _next_ms() -> int:
    global _last_ms  # noqa: PLW0603 - lives are made in several threads
    with _making:
        _last_ms = max(_last_ms + 1, time.time_ns() // 1_000_000)
        return _last_ms


def life_number(life: str) -> int | None:
    """A life as a number of 63 bits; None where it is not known, or not a hexadecimal number."""
    digits = life[:_NUMBER_DIGITS]
    return int(digits, 16) % _NUMBERS if _HEX.fullmatch(digits) else None
