"""The pytest plugin, in projects that are not this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.config import ConfigError
from streamd.testing import ServerNotStarted, run_server
from tests.support.process import wait_until

ROOT = Path(__file__).parent.parent.parent
# Without an installed streamd, the plugin has to be named.
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "streamd.testing")


def run_pytest(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the tests of a project in `folder`; what they leave is in `folder/temp`."""
    own = ["--rootdir", str(folder), "--basetemp", str(folder / "temp")]
    return subprocess.run(
        [*PYTEST, "-p", "no:cacheprovider", *own, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_of_asyncio_trio_and_pika(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    example = ROOT / "examples" / "test_with_streamd.py"
    result = run_pytest(tmp_path, "-c", str(tmp_path / "pytest.ini"), str(example))
    assert "3 passed" in result.stdout, result


def test_settings_of_the_project_and_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "segments.py").write_text("raise RuntimeError('of the project, not of streamd')")
    (tmp_path / "pytest.ini").write_text(
        '[pytest]\nstreamd_settings =\n    user = "ada/ß"\n    password = "secret"\n'
        '    http_port = "off"\n'
    )
    (tmp_path / "test_it.py").write_text(
        "def test_settings(streamd_server):\n"
        "    s = streamd_server\n"
        "    assert s.uri == f'rabbitmq-stream://ada%2F%C3%9F:changed@localhost:{s.stream_port}/'\n"
        "    assert s.http_port == 0\n"
        "    assert s.metrics_port\n"
        "    assert s.amqp_port not in (0, 5672)\n"
        "    assert s.data.is_dir()\n"
    )
    changed = {"STREAMD_PASSWORD": "changed", "STREAMD_DATA": "/nowhere"}
    result = run_pytest(tmp_path, "test_it.py", **changed, STREAMD_AMQP_PORT="5672")
    assert "1 passed" in result.stdout, result


def test_the_server_ends_when_pytest_is_killed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "import os, signal\n"
        "def test_killed(streamd_server):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = run_pytest(tmp_path, "test_it.py")
    assert result.returncode < 0, result
    log = tmp_path / "temp" / "streamd0" / "streamd.log"
    wait_until(lambda: "stdin has ended: stopping" in log.read_text())


def test_stdin_that_is_at_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamd", "serve", "--until-stdin-ends"]
    ports = ["--stream-port", "0", "--amqp-port", "off", "--http-port", "off"]
    data = ["--data", str(tmp_path / "data")]
    for stdin in ("</dev/null", "<&-"):
        ended = subprocess.run(
            ["sh", "-c", f'exec "$@" {stdin}', "sh", *command, *ports, *data],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended
        assert "stdin has ended: stopping" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="max_streams is -1"),
        run_server(tmp_path, max_streams=-1),
    ):
        pass
    with (
        pytest.raises(ServerNotStarted, match=r"cannot listen on 192\.0\.2\.1"),
        run_server(tmp_path, host="192.0.2.1"),
    ):
        pass
