"""Keeps a data folder of this version, for all later ones to read: a step of each release.

python -m tests.releases
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import anyio

from streamd import __version__
from tests.releases.contents import FOLDERS, read, server_over, write


def main() -> None:
    target = FOLDERS / __version__
    if target.exists():
        sys.exit(f"{target} exists: a folder that was kept is never changed")
    scratch = Path(tempfile.mkdtemp(prefix="streamd-release-"))
    server = server_over(scratch / "data").start()
    try:
        anyio.run(write, server)
        contents = anyio.run(read, server)
        shutil.copytree(server.data, target / "killed")
        server.stop()
        shutil.copytree(server.data, target / "ended")
    finally:
        server.end()
        shutil.rmtree(scratch)
    text = json.dumps(contents, ensure_ascii=False, indent=1)
    (target / "expected.json").write_text(text + "\n")
    print(f"{target}: {sum(len(m) for m in contents['messages'].values())} messages")


if __name__ == "__main__":
    main()
