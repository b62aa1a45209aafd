"""Takes the wheel of everything apart: `streamd-client`, and `streamd-server`, which requires it.

python wheels.py dist

No file is in both, so they stand beside each other in one environment, and a program that needs the
client brings no part of the server. What `pip install .` makes of a checkout stays whole: no
package index has the other half of it.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# The client library, and what it imports.
CLIENT = ("clients/", "segments/", "streamd/wire/__init__.py", "streamd/wire/stream/")
CLIENT += ("streamd/__init__.py", "streamd/version.py", "streamd/py.typed")
CLIENT_NEEDS = ("anyio", "cramjam", "isal", "mmh3", "msgspec")
SUMMARY = "A client for RabbitMQ streams and streamd, for asyncio and trio programs."
_FOR_ALL = ("WHEEL", "licenses/LICENSE")


def take_apart(whole: Path) -> None:
    """Replace a wheel of everything by the two, in its folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _wheel("unpack", str(whole), "--dest", name)
        (server,) = folder.iterdir()
        client = folder / server.name.replace("streamd_server", "streamd_client")
        (info,) = server.glob("*.dist-info")
        client_info = client / f"{client.name}.dist-info"
        for file in [path for path in server.rglob("*") if path.is_file()]:
            place = str(file.relative_to(server))
            if place.startswith(CLIENT):
                (client / place).parent.mkdir(parents=True, exist_ok=True)
                file.rename(client / place)
        for place in _FOR_ALL:
            (client_info / place).parent.mkdir(parents=True, exist_ok=True)
            (client_info / place).write_bytes((info / place).read_bytes())
        lines = (info / "METADATA").read_text().splitlines(keepends=True)
        (client_info / "METADATA").write_text("".join(_of_client(lines)))
        first = next(n for n, line in enumerate(lines) if _needed(line))
        version = server.name.partition("-")[2]
        lines.insert(first, f"Requires-Dist: streamd-client=={version}\n")
        (info / "METADATA").write_text("".join(lines))
        for part in (client, server):
            _wheel("pack", str(part), "--dest-dir", str(whole.parent))


def _of_client(lines: list[str]) -> Iterator[str]:
    """What is said of the whole, as far as it is so of the client."""
    for line in lines:
        name = _needed(line)
        if line.startswith("Name:"):
            yield "Name: streamd-client\n"
        elif line.startswith("Summary:"):
            yield f"Summary: {SUMMARY}\n"
        elif not line.startswith("Provides-Extra:") and (name is None or name in CLIENT_NEEDS):
            yield line


def _needed(line: str) -> str | None:
    """What a line requires, "" where only an extra does; None where it is about something else."""
    found = re.match(r"Requires-Dist: ([\w-]+)", line)
    return found and ("" if "extra ==" in line else found[1])


def _wheel(*words: str) -> None:
    subprocess.run((sys.executable, "-m", "wheel", *words), check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    (built,) = Path(sys.argv[1]).glob("*.whl")
    take_apart(built)
