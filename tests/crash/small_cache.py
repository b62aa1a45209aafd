"""`python -m tests.crash.small_cache serve …`: a server that a short run can bring to its limits.

The cache of the tier is far too small, and key indexes are not waited for.
"""

import os
import signal
import sys

import trio

from streamd import server
from streamd.__main__ import run
from streamd.broker.tier import segment_uploads

CACHE_BYTES = int(os.environ.get("SMALL_CACHE_BYTES", "300000"))


def _tell(*_: object) -> None:
    """Write down where all tasks are, for whoever looks into a server that hangs."""
    root = trio.lowlevel.current_root_task()
    tasks = [root] if root is not None else []
    for task in tasks:
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        where = [f"{frame.f_code.co_qualname}:{line}" for frame, line in task.iter_await_frames()]
        print("TASK", task.name, " > ".join(where), file=sys.stderr, flush=True)


if __name__ == "__main__":
    server._cache_bytes = lambda _config: CACHE_BYTES
    segment_uploads._KEYS_SECONDS = 0.5
    signal.signal(signal.SIGUSR1, _tell)
    run()
