"""Folders that belong to no stream are moved out of the way, not deleted.

If the catalog got lost they are all there is, and somebody may have put a copy there.
"""

import logging
from pathlib import Path
from uuid import uuid4

from segments.codec import FILE_HEADER_SIZE
from segments.disk import OsDisk
from segments.marks import STORED
from segments.store.local_copy import MANIFEST_FILE

logger = logging.getLogger(__name__)


def set_aside(data: str, folder: Path, what: str = "") -> None:
    """Move a folder to `orphans` in the data folder, and say so; `what` it is, for people.

    Raises:
        OSError: it cannot be moved.
    """
    aside = Path(data, "orphans", f"{folder.name}-{uuid4().hex[:8]}")
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    for changed in (aside.parent, Path(data)):  # before what it was moved from goes
        OsDisk().sync_folder(str(changed))
    logger.warning("%s; it is now %s", what or f"{folder} belongs to no stream", aside)


def has_messages(folder: Path) -> bool:
    """Whether there is more in a folder than the files of a stream that nobody has used."""
    if any(path.name == MANIFEST_FILE or path.name.startswith(STORED) for path in folder.glob("*")):
        return True  # they may all be in the tier
    return any(file.stat().st_size > FILE_HEADER_SIZE for file in folder.glob("*.segment"))
