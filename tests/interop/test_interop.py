"""One small program for each language. It prints a line "ok NAME" for each part that works."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trustme

from clients import connect
from tests.support.pages import ROOT
from tests.support.process import ServerProcess

HERE = Path(__file__).parent
PARTS = {
    "publish_and_confirm",
    "deduplication",
    "sub_batches",
    "filtering",
    "offset_tracking",
    "statistics",
    "super_stream",
    "single_active_consumer",
    "concurrency",
    "gap",
    "tls",
}
RSTREAM_PARTS = {"super_stream", "single_active_consumer", "concurrency", "gap"}
AMQP_PARTS = {
    "publish_and_confirm",
    "offsets",
    "filtering",
    "properties",
    "refusals",
    "deletion",
    "gap",
    "small_frames",
    "new_secret",
    "stream_example",
}
AMQP10_PARTS = {
    "publish_and_confirm",
    "offsets",
    "filtering",
    "routing",
    "refusals",
    "deletion",
    "tls",
}
_STEP_SECONDS = 240  # a registry may be slow, and what is written in C is compiled
pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


class Language(NamedTuple):
    """What it takes to run a program.

    Attributes:
        folder: of the program; it is run in a copy, so that nothing is left behind.
        tools: that must be installed.
        steps: commands, the last of which is the program.
        parts: that it has to do.
    """

    folder: str
    tools: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    parts: Set[str] = frozenset(PARTS)


LANGUAGES = (
    Language("python", (), ((sys.executable, "main.py"),), RSTREAM_PARTS),
    Language(
        "javascript",
        ("node", "npm"),
        (("npm", "install", "--silent", "--no-audit"), ("node", "main.js")),
    ),
    Language(
        "amqplib",
        ("node", "npm"),
        (("npm", "install", "--silent", "--no-audit"), ("node", "main.js")),
        AMQP_PARTS,
    ),
    Language(
        "rhea",
        ("node", "npm"),
        (("npm", "install", "--silent", "--no-audit"), ("node", "main.js")),
        AMQP10_PARTS | {"messages", "credit"},
    ),
    Language(
        "amqp10_go",
        ("go",),
        (("go", "mod", "tidy"), ("go", "run", ".")),
        AMQP10_PARTS | {"messages", "credit"},
    ),
    Language(
        "amqp10_python",
        ("cc",),
        (
            (sys.executable, "-m", "venv", "env"),
            ("env/bin/python", "-m", "pip", "install", "--quiet", "-r", "requirements.txt"),
            ("env/bin/python", "main.py"),
        ),
        AMQP10_PARTS | {"recovery", "proton", "matrix", "example"},
    ),
    Language(
        "amqp10_java",
        ("java", "mvn"),
        (
            ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"),
            ("java", "-cp", "jars/*", "Main.java"),
        ),
        AMQP10_PARTS | {"recovery"},
    ),
    Language("go", ("go",), (("go", "mod", "tidy"), ("go", "run", "."))),
    Language(
        "java",
        ("java", "mvn"),
        (
            ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"),
            ("java", "-cp", "jars/*", "Main.java"),
        ),
    ),
)


_GAP_STREAM = "gap"


async def _fill(uri: str, numbers: range) -> None:
    async with connect(uri) as client:
        await client.create(_GAP_STREAM, exist_ok=True)
        async with client.producer(_GAP_STREAM) as producer:
            for number in numbers:
                await producer.send(b"lost %d" % number)
        await client.set_offset(_GAP_STREAM, "app", numbers.stop - 1)


def _lose_the_end(server: ServerProcess) -> None:
    """20 messages are seen and stored as seen; the machine goes down, and the last 10 are gone."""
    folder = server.data / "streams/%2F" / _GAP_STREAM
    segment = folder / f"{0:020d}.segment"
    trio.run(_fill, server.uri, range(10))
    size = segment.stat().st_size
    trio.run(_fill, server.uri, range(10, 20))
    server.kill()
    os.truncate(segment, size)
    (mark,) = folder.glob("ahead-*")
    mark.rename(folder / "ahead-another-boot")
    server.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ServerProcess, Path]]:
    authority = trustme.CA()
    ca, certificate = tmp_path / "ca.pem", tmp_path / "server.pem"
    authority.cert_pem.write_to_path(str(ca))
    made = authority.issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(str(certificate))
    options = ("--tls-port=0", "--amqp-tls-port=0", f"--tls-certificate={certificate}")
    process = ServerProcess(tmp_path / "data", *options, "--http-port=0")
    try:
        _lose_the_end(process.start())
        yield process, ca
    finally:
        process.end()
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.folder)
def test_a_client_in(
    language: Language, server: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    for tool in language.tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed, so {language.folder} is not tried")
    process, ca = server
    folder = tmp_path / language.folder
    shutil.copytree(HERE / language.folder, folder)
    environment = os.environ | {
        "STREAM_PORT": str(process.port),
        "TLS_PORT": str(process.tls_port),
        "AMQP_PORT": str(process.amqp_port),
        "AMQP_TLS_PORT": str(process.amqp_tls_port),
        "HTTP_PORT": str(process.http_port),
        "CA_FILE": str(ca),
        "GAP_STREAM": _GAP_STREAM,
        "EXAMPLE": str(ROOT / "examples/amqp10_filter_and_sql.py"),
        "EXAMPLE_PAGE": str(ROOT / "docs/how-to/amqp10.md"),
    }
    for step in language.steps:
        result = subprocess.run(
            step,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_STEP_SECONDS,
        )
        assert result.returncode == 0, f"{step}: {result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    done = {line.removeprefix("ok ") for line in result.stdout.splitlines()}
    assert done >= language.parts, f"not done: {language.parts - done}"
