"""`streamd serve` as an operator meets it: starting, refusing to start, stopping, full disks."""

import contextlib
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trio
from anyio import to_thread

from clients import Client, ConnectionLost, connect
from clients.connection import open_connection
from clients.uri import parse_uri
from streamd.config import Config
from streamd.http_api.serving import Listener
from streamd.server import serve as serve_here
from tests.e2e.test_stop import SUBSCRIBE, raw
from tests.support.process import ServerProcess, run_streamd, wait_until


def serve(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `streamd serve` where it is expected to end by itself."""
    ports = ("--http-port", "off", "--amqp-port", "0", "--metrics-port", "0")
    return run_streamd("serve", *ports, *options, **environment)


class TestRefusals:
    """One line on stderr, nothing on stdout, exit 1; 2 where the command was not understood."""

    def check(self, result: subprocess.CompletedProcess[str], reason: str, code: int = 1) -> None:
        assert result.returncode == code
        assert result.stdout == ""
        lines = [line for line in result.stderr.splitlines() if " INFO " not in line]
        assert reason in lines[-1]
        if code == 1:
            assert len(lines) == 1, result.stderr

    @pytest.mark.parametrize("option", ["--stream-port", "--http-port"])
    def test_a_port_in_use(self, tmp_path: Path, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            data = ("--data", str(tmp_path / "data"))
            result = serve(*data, "--stream-port", "0", option, str(port))
        self.check(result, f"cannot listen on 127.0.0.1:{port}: Address already in use")
        assert option == "--stream-port" or option in result.stderr

    def test_an_address_that_is_not_ours(self, tmp_path: Path) -> None:
        result = serve("--data", str(tmp_path / "d"), "--host", "192.0.2.1", "--stream-port", "0")
        self.check(result, "cannot listen on 192.0.2.1:0")

    @pytest.mark.parametrize("folder", ["/proc/streamd", "/dev/null/data"])
    def test_a_folder_that_cannot_be_written(self, folder: str) -> None:
        result = serve("--data", folder, "--stream-port", "0")
        self.check(result, f"cannot use the data folder {folder}")

    def test_a_folder_that_is_in_use(self, server: ServerProcess) -> None:
        result = serve("--data", str(server.data), "--stream-port", "0")
        self.check(result, "another server uses the data folder")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--stream-port", "99999"], "stream_port is 99999, expected 0 to 65535"),
            (["--stream-port", "x"], "'x' is neither a port nor off"),
            (["--config", "/nowhere.toml"], "cannot read /nowhere.toml"),
            (["--no-such-option"], "No such option"),
        ],
    )
    def test_options_that_are_not_understood(self, options: list[str], reason: str) -> None:
        self.check(serve(*options), reason, code=2)

    def test_a_bad_environment(self) -> None:
        result = serve(STREAMD_HEARTBEAT="often")
        self.check(result, "STREAMD_HEARTBEAT is 'often', expected a number", code=2)


class TestRunning:
    def test_settings_from_file_environment_and_options(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = tmp_path / "streamd.toml"
        config.write_text('password = "from-file"\nuser = "file"\nadvertised_host = "127.0.0.1"\n')
        monkeypatch.setenv("STREAMD_USER", "environment")
        process = ServerProcess(tmp_path / "data", "--config", str(config), "--heartbeat", "7")
        with process:
            uri = f"rabbitmq-stream://environment:from-file@localhost:{process.port}/"

            async def look() -> None:
                async with open_connection(parse_uri(uri), "test", 60, print) as connection:
                    assert connection.heartbeat == 7

            anyio.run(look)
        assert "from-file" not in process.log.read_text()

    def test_the_amqp_port_can_be_off(self, tmp_path: Path) -> None:
        with ServerProcess(tmp_path / "data", "--amqp-port", "off") as process:
            assert " amqp=off " in process.ready_line

    def test_it_listens_on_loopback_only(self, server: ServerProcess) -> None:
        table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        for port in (server.port, server.amqp_port):
            addresses = re.findall(rf"^ *\d+: (\w+):{port:04X} \S+ 0A ", table, re.MULTILINE)
            assert addresses == ["0100007F"]  # 127.0.0.1, as the kernel writes it

    @pytest.mark.parametrize(
        ("subscribers", "size", "chunk_records"), [(1, 100_000, "100"), (200, 1_000, "10")]
    )
    def test_memory_while_consumers_read_nothing(
        self, server: ServerProcess, subscribers: int, size: int, chunk_records: str
    ) -> None:
        """Much more than that through the server, held up by nobody, in memory for nobody."""

        async def publish() -> int:
            highest = 0
            async with connect(server.uri) as client:
                await client.create("s", arguments={"stream-chunk-max-records": chunk_records})
                with contextlib.ExitStack() as stack:
                    for _ in range(subscribers):
                        stack.enter_context(raw(server.port, SUBSCRIBE))
                    async with client.producer("s") as producer:
                        for _ in range(200):
                            await producer.send_all([b"x" * size] * (1_000_000 // size))
                            highest = max(highest, server.resident_bytes())
            return highest

        assert anyio.run(publish) < 120e6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    arguments = ["-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if (
        mount is None
        or subprocess.run([mount, *arguments], capture_output=True, check=False).returncode
    ):
        pytest.skip(
            "a file system of a given size can only be mounted by root; "
            "tests/broker/streams/test_stream.py fills a disk in memory"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def read_numbers(server: ServerProcess) -> list[int]:
    """The five digits at the beginning of all bodies of stream s."""
    async with (
        connect(server.uri) as client,
        client.consumer("s", offset="first", until_end=True) as messages,
    ):
        return [int(message.body[:5]) async for message in messages]


def grow(disk: Path) -> None:
    """Make room on the small disk."""
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)


class TestFullDisk:
    def test_nothing_is_lost_and_others_go_on(self, small_disk: Path) -> None:
        server = ServerProcess(small_disk / "data")
        server.log = small_disk.with_suffix(".log")
        ballast = small_disk / "ballast"
        bodies = [b"%05d" % n + b"x" * 1000 for n in range(6000)]  # 6 MB, where 4 fit

        async def main() -> list[bytes]:
            async with connect(server.uri) as client, connect(server.uri) as other:
                await client.create("full")
                await other.create("small")
                ballast.write_bytes(bytes(500_000))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(publish, client)
                    await to_thread.run_sync(
                        wait_until, lambda: "No space left on device" in server.log.read_text()
                    )
                    # Reading goes on, also by others.
                    async with other.consumer("full", offset="first", credit=5) as messages:
                        for n in range(1000):
                            assert (await anext(messages)).body == bodies[n]
                    assert (await other.stats("small"))["committed_offset"] == -1
                    grow(small_disk)
                async with other.consumer("full", offset="first", until_end=True) as messages:
                    return [message.body async for message in messages]

        async def publish(client: Client) -> None:
            async with client.producer("full", window=100_000) as producer:
                await producer.send_all(bodies)

        with server:
            assert anyio.run(main) == bodies
            assert server.log.read_text().count("No space left") < 5  # not once a second per try
            assert "there is room on the disk again" in server.log.read_text()

    def test_what_was_confirmed_before_a_kill_on_a_full_disk(self, small_disk: Path) -> None:
        server = ServerProcess(small_disk / "data")
        server.log = small_disk.with_suffix(".log")
        confirmed = 0

        async def main() -> None:
            nonlocal confirmed
            async with connect(server.uri, retry_seconds=0) as client:
                await client.create("s")
                async with client.producer("s", window=20) as producer:
                    for n in range(6000):
                        await producer.send(b"%05d" % n + b"x" * 1000)
                        confirmed = n + 1 - 20

        def kill() -> None:
            wait_until(lambda: "publishers wait" in server.log.read_text())
            server.kill()

        with server:
            killer = threading.Thread(target=kill)
            killer.start()
            with pytest.raises(ConnectionLost):
                anyio.run(main)
            killer.join()
            grow(small_disk)
            server.start()

            found = anyio.run(read_numbers, server)
            assert found == list(range(len(found)))
            assert len(found) >= confirmed > 2000


def test_a_fault_in_serving_http_leaves_the_rest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, to let it fail: it is started again, and streams are served meanwhile."""
    run = Listener.run
    num_runs = 0

    async def failing_first(self: Listener, *arguments: Any) -> None:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 1:
            raise RuntimeError("injected")
        await run(self, *arguments)

    async def use() -> None:
        config = Config(data=str(tmp_path), stream_port=0, amqp_port=0, http_port=0)
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve_here, config))
            uri = f"rabbitmq-stream://guest:guest@127.0.0.1:{server.addresses['stream'].port}"
            async with connect(uri) as client:
                await client.create("s")
            url = f"http://127.0.0.1:{server.addresses['http'].port}/api/overview"
            async with httpx.AsyncClient(auth=("guest", "guest")) as http:
                assert (await http.get(url)).json()["background_faults"] == 1
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(Listener, "run", failing_first)
    trio.run(use)
