"""Builds and runs what the Containerfile says, without a container engine.

python -m tests.containerfile

Its steps are carried out in a folder that stands for the root of the image: RUN as it is there, but
with the paths of that folder; then ENTRYPOINT with CMD, HEALTHCHECK and STOPSIGNAL as the user of
the image, without HOME, in folders that nobody may write to. As root this is done under the numbers
that the image names; else under those of the caller. It needs a package index.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streamd.config import Config, load

ROOT = Path(__file__).parent.parent
PLACES = ("/src", "/opt/streamd", "/var/lib/streamd")
PORTS = {"STREAMD_STREAM_PORT": "0", "STREAMD_AMQP_PORT": "0", "STREAMD_HTTP_PORT": "0"}
LATER = {"ARG", "CMD", "ENTRYPOINT", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"}
LATER |= {"STOPSIGNAL", "USER", "VOLUME"}
LOGIN = {"STREAMD_USER": "ada", "STREAMD_PASSWORD": "secret"}


class Step(NamedTuple):
    """An instruction with its options and the rest of its line."""

    name: str
    options: list[str]
    text: str

    @property
    def words(self) -> list[str]:
        """Its arguments, in JSON or separated by spaces."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def read_steps(text: str) -> Iterator[Step]:
    """The instructions of a Containerfile, in order."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, rest = line.split(maxsplit=1)
        options = []
        while rest.startswith("--"):
            option, rest = rest.split(maxsplit=1)
            options.append(option)
        yield Step(name, options, rest.strip())


class Image:
    """The result of the steps.

    Attributes:
        root: the folder that stands for /.
        settings: the last instruction of each kind.
        environment: the variables of ENV.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings: dict[str, Step] = {}
        self.environment: dict[str, str] = {}
        self._folder = root

    def build(self, steps: Iterator[Step]) -> None:
        for step in steps:
            self.settings[step.name] = step
            match step.name:
                case "WORKDIR":
                    self._folder = self._place(step.text)
                    self._folder.mkdir(parents=True)
                case "COPY":
                    self._copy(step)
                case "RUN":
                    (self.root / "var/lib").mkdir(parents=True, exist_ok=True)
                    print("RUN", step.text)
                    command = self._translated(step.text)
                    subprocess.run(command, shell=True, check=True, cwd=self._folder)
                case "ENV":
                    for pair in step.words:
                        name, value = pair.split("=", 1)
                        self.environment[name] = self._translated(value)
                case _:
                    assert step.name in LATER, f"what is done here for {step.name}?"

    def _copy(self, step: Step) -> None:
        *sources, target = step.words
        if step.options:  # from the other stage, which has the same folder here
            assert (step.options, sources) == (["--from=build"], [target])
            return
        for name in sources:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, self._folder / target, ignore=ignored)
            else:
                shutil.copy(ROOT / name, self._folder / target)

    def _place(self, path: str) -> Path:
        assert path in PLACES, path
        return self.root / path[1:]

    def _translated(self, text: str) -> str:
        pattern = "|".join(map(re.escape, PLACES))
        text = re.sub(rf"(?<![\w/])({pattern})\b", lambda m: str(self._place(m[0])), text)
        owner = () if os.getuid() == 0 else (" -o 65532 -g 0",)
        for part in owner:
            text = text.replace(part, "")
        return text.replace("python3 -m venv", f"{sys.executable} -m venv")

    def command(self, *words: str) -> list[str]:
        """A command as the user of the image runs it."""
        user, group = self.settings["USER"].text.split(":")
        assert user.isdecimal()
        assert user != "0"
        if os.getuid() != 0:
            return list(words)
        switch = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        return [*switch, "--inh-caps=-all", "--bounding-set=-all", *words]

    def start(self, **more: str) -> subprocess.Popen[str]:
        words = [*self.settings["ENTRYPOINT"].words, *self.settings["CMD"].words]
        return subprocess.Popen(
            self.command(*words),
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=self.environment | more,
        )

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=self.environment | more,
        )


def writable(image: Image) -> list[str]:
    """Folders outside of the data folder that the user of the image may write to."""
    find = ["find", str(image.root), "-writable", "-not", "-type", "l", "-not", "-path"]
    found = image.run(*find, f"{image.root}/var/lib/streamd*").stdout.split()
    return found if os.getuid() == 0 else []


def check_running(image: Image, **more: str) -> None:
    """Start, be healthy, take a message from another address, stop, and keep what there was."""
    began = time.perf_counter()
    with image.start(**PORTS, **more) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            print(f"{line.strip()} after {time.perf_counter() - began:.2f} s")
            port = re.findall(r"stream=0\.0\.0\.0:(\d+)", line)[0]
            uri = f"rabbitmq-stream://localhost:{port}"
            health = image.settings["HEALTHCHECK"].text.removeprefix("CMD ")
            healthy = image.run(*json.loads(health), STREAMD_URI=uri)
            assert healthy.returncode == 0, healthy
            use(image, port)
        finally:
            server.send_signal(signal.Signals[image.settings["STOPSIGNAL"].text])
    assert server.returncode == 0
    unhealthy = image.run(*json.loads(health), STREAMD_URI=uri)
    assert unhealthy.returncode == 1, unhealthy


def use(image: Image, port: str) -> None:
    """The user named at the start may do everything from elsewhere; there is no guest."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; says which address is not loopback
        own = probe.getsockname()[0]
    uri = f"rabbitmq-stream://ada:secret@{own}:{port}"
    created = image.run("streamd", "stream", "list", STREAMD_URI=uri)
    assert created.returncode == 0, created
    guest = image.run("streamd", "stream", "list", STREAMD_URI=f"rabbitmq-stream://{own}:{port}")
    assert guest.returncode == 1, guest


def main() -> None:
    steps = list(read_steps((ROOT / "Containerfile").read_text()))
    folder = Path(tempfile.mkdtemp(prefix="streamd-image-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        image = Image(folder)
        image.build(iter(steps))
        load(None, image.environment)  # its variables are settings
        ports = (
            Config().stream_port,
            Config().amqp_port,
            Config().http_port,
            Config().metrics_port,
        )
        assert image.settings["EXPOSE"].words == [str(port) for port in ports]
        assert image.environment["STREAMD_DATA"] == str(folder) + image.settings["VOLUME"].text
        assert writable(image) == []
        check_running(image, **LOGIN)
        check_running(image)  # again, over the same data: who may log in is known
        secret = folder / "var/lib/streamd.toml"
        secret.write_text('user = "ada"\npassword = "secret"\n')
        shutil.rmtree(folder / "var/lib/streamd")
        subprocess.run(image._translated(run_step(steps)), shell=True, check=True)
        image.settings["CMD"] = Step("CMD", [], json.dumps(["serve", "--config", str(secret)]))
        check_running(image)
    finally:
        shutil.rmtree(folder)
    print("the image works, as far as that can be said without an engine")


def run_step(steps: list[Step]) -> str:
    """The step that makes the data folder."""
    return next(step.text for step in steps if step.name == "RUN" and "install -d" in step.text)


if __name__ == "__main__":
    main()
