"""`python -m tests.crash.small_cache serve …`: a server whose cache of the tier is far too small."""

import os

from streamd import server
from streamd.__main__ import run

CACHE_BYTES = int(os.environ.get("SMALL_CACHE_BYTES", "300000"))

if __name__ == "__main__":
    server._cache_bytes = lambda _config: CACHE_BYTES  # noqa: SLF001 - below what can be set
    run()
