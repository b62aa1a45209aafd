"""How commands end as real processes: descriptors and signals that only those have."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamd.cli import main
from tests.support.process import ServerProcess


def shell(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line in which STREAMD stands for `streamd`."""
    command = command.replace("STREAMD", f"{sys.executable} -m streamd")
    return subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


COMMANDS = (
    ("STREAMD stream list > /dev/full", 1, "", "Error: cannot write to stdout: No space left"),
    ("STREAMD stream list >&-", 1, "", "Error: cannot write to stdout: Bad file descriptor"),
    ("STREAMD stream list 2>&-", 0, "stream", ""),
    ("STREAMD stream create t 2> /dev/full", 0, "", ""),
    ("STREAMD publish s <&-", 1, "", "Error: cannot read <stdin>: Bad file descriptor"),
    ("STREAMD consume s --until-end | true", 0, "", ""),
)


def test_descriptors(server: ServerProcess) -> None:
    with pytest.raises(SystemExit):
        main(["stream", "create", "s", "--uri", server.uri])
    environment = os.environ | {"STREAMD_URI": server.uri, "PYTHONUNBUFFERED": ""}
    for command, code, stdout, stderr in COMMANDS:
        ended = shell(command, env=environment)
        assert ended.returncode == code, ended
        assert ended.stdout.startswith(stdout), ended
        assert ended.stderr.startswith(stderr), ended
        assert ended.stderr.count("\n") <= 1, ended


def test_interrupted_at_a_pipe_that_stays_open(server: ServerProcess) -> None:
    """What came before is published; the shell is told of the interrupt."""
    command = [sys.executable, "-m", "streamd", "publish", "s", "--uri", server.uri]
    with pytest.raises(SystemExit):
        main(["stream", "create", "s", "--uri", server.uri])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as publisher:
        assert publisher.stdin is not None
        assert publisher.stderr is not None
        publisher.stdin.write("bad\n{}\n")
        publisher.stdin.flush()
        assert publisher.stderr.readline().startswith("line 1 is not JSON")
        publisher.send_signal(signal.SIGINT)
        assert publisher.wait(20) == 130
        assert publisher.stderr.read() == "interrupted; published 1 message to s\n"


def test_a_server_whose_stdout_is_closed(tmp_path: Path) -> None:
    """It runs, as a daemon does, and logs what it could not print."""
    options = "--stream-port 0 --amqp-port off --http-port off"
    command = f"exec {sys.executable} -m streamd serve --data {tmp_path}/data {options} >&-"
    with subprocess.Popen(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "ready at stream=" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
