"""`python -m tests.crash.small_cache serve …`: a server that a short run can bring to its limits.

The cache of the tier is far too small, and key indexes are not waited for.
"""

import os

from streamd import server
from streamd.__main__ import run
from streamd.broker.tier import stream_tier

CACHE_BYTES = int(os.environ.get("SMALL_CACHE_BYTES", "300000"))

if __name__ == "__main__":
    server._cache_bytes = lambda _config: CACHE_BYTES  # noqa: SLF001 - below what can be set
    stream_tier._KEYS_SECONDS = 0.5  # noqa: SLF001 - a minute would be half of the run
    run()
