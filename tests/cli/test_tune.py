"""Which virtual host `streamd tune` is about: that of the stream it has looked at, or none."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from segments import Log, LogPolicy
from streamd.cli import main, tune as command
from streamd.operations.names import stream_folder
from tests.support.logs import append


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of servers at which something is changed."""
    found: list[str] = []
    tuned = SimpleNamespace(stream="flights")
    monkeypatch.setattr(command, "run_tuning", lambda *_, **__: tuned)
    monkeypatch.setattr(command, "print_tuning", lambda _: None)
    monkeypatch.setattr("segments.spark.report.write_report", lambda *_: None)
    monkeypatch.setattr(command, "apply_tuning", lambda _, __, uri: found.append(uri))
    return found


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["tune", *arguments, "--apply"])
    return found.exit_code, found.stderr


@pytest.mark.parametrize("path", ["", "/", "/x"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_the_stream_is_changed_in_its_virtual_host(
    tmp_path: Path, applied: list[str], path: str, *, is_folder: bool
) -> None:
    folder = stream_folder(str(tmp_path), "x", "flights")
    Path(folder).mkdir(parents=True)
    asked = [folder] if is_folder else ["flights", "--vhost", "x", "--data", str(tmp_path)]
    assert run(*asked, "--uri", f"rabbitmq-stream://host:1{path}")[0] == 0
    assert applied == ["rabbitmq-stream://host:1/x"]


@pytest.mark.parametrize("path", ["/y", "/%2F"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_or_it_is_refused(
    tmp_path: Path, applied: list[str], path: str, *, is_folder: bool
) -> None:
    folder = stream_folder(str(tmp_path), "x", "flights")
    Path(folder).mkdir(parents=True)
    asked = [folder] if is_folder else ["flights", "--vhost", "x", "--data", str(tmp_path)]
    code, said = run(*asked, "--uri", f"rabbitmq-stream://host:1{path}")
    assert code == 2
    assert "in the virtual host" in said
    assert "expected x" in said
    assert not applied


def test_without_one_it_is_that_of_the_address(tmp_path: Path, applied: list[str]) -> None:
    Path(stream_folder(str(tmp_path), "x", "flights")).mkdir(parents=True)
    uri = "rabbitmq-stream://host:1/x"
    assert run("flights", "--data", str(tmp_path), "--uri", uri)[0] == 0
    assert applied == [uri]


def test_a_path_has_its_own(tmp_path: Path) -> None:
    code, said = run(str(tmp_path), "--vhost", "x")
    assert code == 2
    assert "--vhost needs the NAME of a stream" in said


def processes(group: int) -> list[str]:
    """The programs that run in a group of processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        if rest.split()[2] == str(group) and rest.split()[0] != "Z":
            found.append(name.partition("(")[2])
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_ctrl_c_while_spark_starts_leaves_nothing(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "s"), LogPolicy())
    append(log, [b"x"] * 10, [b"v"] * 10)
    log.close()
    running = subprocess.Popen(
        [sys.executable, "-m", "streamd", "tune", str(tmp_path / "s")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(command.__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while len(processes(running.pid)) < 2 and running.poll() is None:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        running.wait()
        assert processes(running.pid) == []
        out, said = running.communicate()
    finally:  # a JVM that was left holds the pipes
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert (running.returncode, out, said) == (130, "", "interrupted\n")
