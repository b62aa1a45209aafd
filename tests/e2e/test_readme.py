"""The README is true: its commands run and print what it shows."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from segments.__main__ import main as segments_main
from streamd.cli import main
from tests.support.process import ServerProcess

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
_VARIES = (  # output that differs from run to run, and its stand-in
    (re.compile(r"20\d\d-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?Z"), r"(time\1)"),
    (re.compile(r"\b\d+ bytes"), "(bytes)"),
    (re.compile(r"127\.0\.0\.1:\d+"), "(address)"),
    (re.compile(r" +"), " "),
)


class Step(NamedTuple):
    command: str
    output: list[str]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def steps() -> Iterator[Step]:
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *output = part.splitlines()
            yield Step(command, output)


def steady(lines: list[str]) -> list[str]:
    text = "\n".join(line.strip() for line in lines)
    for pattern, stand_in in _VARIES:
        text = pattern.sub(stand_in, text)
    return text.splitlines()


class Reader:
    """A reader who types the commands of the README, beside a running server."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        scripts = str(Path(sys.executable).parent)
        self._folder = folder
        self._environment = os.environ | {
            "STREAMD_URI": server.uri,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self._uri, self._amqp_uri = server.uri, server.amqp_uri
        (folder / "examples").symlink_to(ROOT / "examples")

    def type(self, command: str) -> list[str]:
        if "examples/" in command:
            command += f" {self._amqp_uri if 'pika' in command else self._uri}"
        result = subprocess.run(
            command,
            shell=True,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return result.stdout.splitlines()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data", "--http-port", "0").start()
    yield process
    process.end()


def test_every_command_prints_what_is_shown(server: ServerProcess) -> None:
    reader = Reader(server, server.data.parent)
    seen = 0
    for step in steps():
        if step.command == ". .venv/bin/activate":
            continue
        if step.command == "streamd serve":
            assert steady(step.output) == steady([server.ready_line])
            continue
        assert steady(reader.type(step.command)) == steady(step.output), step.command
        seen += 1
    assert seen > 5


def test_the_program_is_the_one_in_examples() -> None:
    (program,) = blocks("python")
    assert program in (ROOT / "examples" / "hello.py").read_text()


def children(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        child = group.get_command(context, name)
        assert child is not None
        yield name, child


def commands(name: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for sub, child in children(command):
            yield from commands(f"{name} {sub}", child)
    else:
        yield name


ALL = [*commands("streamd", main), *commands("python -m segments", segments_main)]


@pytest.mark.parametrize("command", ALL)
def test_every_command_is_there(command: str) -> None:
    assert f"| `{command}` |" in README


def test_every_option_that_is_named_exists() -> None:
    known = set()
    for group in (main, segments_main):
        for context in _walk(group):
            known |= {name for parameter in context.params for name in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert named - known == {"--help"}


def _walk(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for _, child in children(command):
            yield from _walk(child)


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE))
    assert named
    assert named <= targets


def test_links_inside_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target[1:] in headings if target[0] == "#" else (ROOT / target).exists()


def run_example(name: str, *arguments: str) -> str:
    script = ROOT / "examples" / name
    return subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    ).stdout


def test_the_worker_goes_on_where_it_stopped(server: ServerProcess) -> None:
    first, second = (run_example("trio_worker.py", server.uri) for _ in range(2))
    assert first.split() == ["done:", "0", "tea", "done:", "1", "milk", "done:", "2", "sugar"]
    assert second.split() == ["done:", "3", "tea", "done:", "4", "milk", "done:", "5", "sugar"]


def test_rstream_gets_only_the_chunks_it_asked_for(server: ServerProcess) -> None:
    output = run_example("rstream_filter.py", str(server.port))
    assert output == "of 300 messages the server sent 100\n"


def test_orders_picked_by_sql(server: ServerProcess) -> None:
    output = run_example("pick_by_sql.py", server.uri)
    assert output.splitlines() == [
        "[{'total': 90, 'region': 'EU'}] from 3 of 4 chunks",
        (
            "[{'total': 90, 'region': 'EU'}, {'total': 70, 'region': 'US'}, {'total': 80}] "
            "from 3 of 4 chunks"
        ),
    ]


@pytest.mark.slow
def test_late_flights_are_counted_in_spark(server: ServerProcess, tmp_path: Path) -> None:
    lines = [
        json.dumps({"body": "", "carrier": carrier, "dep_delay": delay})
        for carrier, delay in (("HA", 90), ("HA", 5), ("AS", 70), ("UA", 80))
    ]
    (tmp_path / "flights.jsonl").write_text("\n".join(lines))
    for arguments in (
        ["stream", "create", "late", "--filter-size", "64"],
        ["publish", "late", str(tmp_path / "flights.jsonl"), "--filter-property", "carrier"],
    ):
        result = CliRunner().invoke(main, [*arguments, "--uri", server.uri])
        assert result.exit_code == 0, result.output
    folder = str(server.data / "streams" / "%2F" / "late")
    example = [sys.executable, str(ROOT / "examples" / "late_flights_in_spark.py"), folder]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    shown = subprocess.run(example, env=environment, capture_output=True, text=True, check=False)
    assert "|     AS|    1|\n|     HA|    1|\n" in shown.stdout, shown.stderr
    tune = [
        "tune",
        "late",
        "--data",
        str(server.data),
        "--apply",
        "--uri",
        server.uri,
        "--keep-limit",
    ]
    tune += ["--report", str(tmp_path / "report")]
    tuned = subprocess.run(
        [sys.executable, "-m", "streamd", *tune],
        env=environment | {"PATH": without_java(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tuned.returncode == 0, tuned.stderr
    assert "changed late: stream-filter-size-bytes=" in tuned.stderr
    assert (tmp_path / "report" / "report.png").exists()


def without_java(folder: Path) -> str:
    """A PATH with the tools that Spark's scripts need, and no Java: the one from pip is used."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "env", "cat", "ps", "tr", "uname", "sed", "which"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    return str(tools)


def test_nothing_says_to_install_what_is_not_ours() -> None:
    """In package indexes, streamd is another project; ours comes from a checkout or a wheel."""
    folders = ("streamd", "segments", "clients", "examples", "benchmarks")
    files = [*ROOT.glob("*.md"), *(f for folder in folders for f in (ROOT / folder).rglob("*.py"))]
    assert len(files) > 100, "or this test looks at the wrong place"
    index_name = re.compile(
        r"(pip|pipx|uvx|uv)( \w+)*( -\S+)* ['\"]?streamd\b(?!-server)|streamd\["
    )
    found = {str(file.relative_to(ROOT)) for file in files if index_name.search(file.read_text())}
    assert found == set()
