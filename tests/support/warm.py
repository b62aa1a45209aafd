"""Commands that start at once: forked from a process that has imported what they need.

`streamd`, `python FILE` and `python -m segments` take a third of a second to import their modules,
and a page of the documentation has a dozen of them. Two small programs of these names, in a folder
for PATH, hand their arguments, folder, environment and open files to the process with the modules,
which runs the command in a child of its own, and end as that child does.
"""

import asyncio
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct(">I")
_IMPORTED = (
    *("streamd.cli.streams", "streamd.cli.publish", "streamd.cli.consume", "streamd.cli.pipes"),
    *("streamd.cli.selectors", "streamd.cli.access", "segments.verify"),
    *("clients", "trio", "anyio._backends._asyncio", "anyio._backends._trio", "rich.table"),
)
_COMMAND = """\
#!{python} -IS
import json, os, socket, struct, sys
arguments = [{name!r}, *sys.argv[1:]]
is_file = sys.argv[1:] and sys.argv[1].endswith(".py")
if {name!r} == "python" and not is_file and sys.argv[1:3] != ["-m", "segments"]:
    os.execv({python!r}, ["python", *sys.argv[1:]])
asked = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"!"], [0, 1, 2])
    server.sendall(struct.pack(">I", len(asked)) + asked)
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


@contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """A folder with `streamd` and `python`, for as long as the context lasts."""
    address = str(folder / "socket")
    for name in ("streamd", "python"):
        text = _COMMAND.format(python=sys.executable, name=name, address=address)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", address],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield folder
        process.kill()


def serve(address: str) -> None:
    """Run what is asked for, each in a process of its own, until killed."""
    for name in _IMPORTED:
        importlib.import_module(name)
    asyncio.run(asyncio.sleep(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch a command
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _watch(connection)


def _watch(connection: socket.socket) -> None:
    """Run a command, tell its exit code, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    length = _LENGTH.unpack(connection.recv(_LENGTH.size, socket.MSG_WAITALL))[0]
    asked = json.loads(connection.recv(length, socket.MSG_WAITALL))
    command = os.fork()
    if command == 0:
        connection.close()
        _run(files, *asked)
    for file in files:
        os.close(file)
    _, status = os.waitpid(command, 0)
    connection.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    os._exit(0)


def _run(files: list[int], arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Become the command."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        code = _exit_code(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(arguments: list[str]) -> int:
    try:
        _as_main(arguments)
    except SystemExit as end:
        return _code(end.code)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _as_main(arguments: list[str]) -> None:
    program, *rest = arguments
    if program == "streamd" or rest[0] == "-m":
        module = "streamd" if program == "streamd" else rest[1]
        sys.argv = arguments if program == "streamd" else rest[1:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path.insert(0, str(Path(rest[0]).parent))
        runpy.run_path(rest[0], run_name="__main__")


def _code(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    serve(sys.argv[1])
