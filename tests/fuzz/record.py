"""Writes what fuzzing begins with to a folder: conversations that are recorded anew."""

import hashlib
import tempfile
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.fuzz import conversations
from tests.fuzz.targets import seeds
from tests.support.server import harness


def write_seeds(folder: Path) -> None:
    """Write the seeds of each target to its folder."""
    for name, inputs in seeds(trio.run(_record, clock=MockClock(autojump_threshold=0))).items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for data in inputs:
            Path(place, hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


async def _record() -> dict[str, list[bytes]]:
    found = {"http": conversations.http_requests()}
    for name, record in (
        ("stream", conversations.record_stream),
        ("amqp", conversations.record_amqp),
        ("amqp10", conversations.record_amqp10),
    ):
        with tempfile.TemporaryDirectory(prefix="streamd-fuzz-") as folder:
            async with harness(Path(folder, "data"), anonymous_user="guest") as server:
                found[name] = await record(server)
    return found
