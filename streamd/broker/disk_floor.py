"""The part of the disk that is to stay free: publishers wait before the disk is full.

A full disk stops more than publishing: what was received cannot be confirmed, the log of the system
nor the catalog written. So somebody may want the server to stop taking messages earlier.
"""

import errno
import logging
import shutil

import trio

from segments.errors import StorageError
from segments.words import size
from streamd.net import threads

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class LowDiskError(StorageError):
    """Fewer bytes of the disk are free than are to stay free.

    It does not say how many: who tells of it again when it is another one would each second.
    """

    def __init__(self, data: str, least: int) -> None:
        super().__init__("write to", data, OSError(errno.ENOSPC, "the disk is nearly full"))
        self.shortage = (
            f"fewer than {size(least)} of the disk are free (min_disk_free_bytes): free some space"
        )
        self.args = (self.shortage,)


class DiskFloor:
    """Looks how much of the disk is free.

    Args:
        data: a folder on it.
        least: bytes that are to stay free; 0 for none.

    Attributes:
        least: see above.
        error: why nothing is to be written now; None while there is room.
    """

    def __init__(self, data: str, least: int) -> None:
        self.least = least
        self.error: LowDiskError | None = None
        self._data = data

    async def run(self) -> None:
        """Look now and then."""
        if not self.least:
            await trio.sleep_forever()
        while True:
            free = (await threads.in_thread(shutil.disk_usage, self._data)).free
            was_low = self.error is not None
            # There has to be a little more room again, or it would go up and down.
            least = self.least + self.least // 10 if was_low else self.least
            self.error = LowDiskError(self._data, self.least) if free < least else None
            if self.error is not None and not was_low:
                logger.error("%s are left; publishers wait: %s", size(free), self.error)
            elif self.error is None and was_low:
                logger.warning("%s of the disk are free: publishers go on", size(free))
            await trio.sleep(LOOK_SECONDS)
