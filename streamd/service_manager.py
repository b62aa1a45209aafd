"""What a service manager such as systemd is told: ready, how it goes, alive, reloading, stopping.

Each message is one datagram to the socket that NOTIFY_SOCKET names; nobody answers. The server
neither fails nor waits because of its manager: a message that cannot be sent is dropped.

Source: systemd/systemd, man/sd_notify.xml and man/sd_watchdog_enabled.xml and
man/systemd.service.xml.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import trio

from streamd.broker.supervisor import Supervisor

logger = logging.getLogger(__name__)

_STATUS_SECONDS = 10.0
_EXTEND_SECONDS = 5.0
_MORE_SECONDS = 20  # that each request for more time to stop asks for
_MUST_ARRIVE = frozenset(("READY=1", "STOPPING=1"))  # are said again with the next message
_MOST_SECONDS = 300  # in all: a disk that hangs for longer will not come back


class ServiceManager:
    """The manager that has started this process; there may be none.

    Args:
        environment: where its socket and its wishes are; default that of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_seconds = _watchdog_seconds(environment)
        self._unsaid: list[str] = []
        self._has_complained = False
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(
        self,
        supervisor: Supervisor,
        nursery: trio.Nursery,
        stop: trio.Event,
        status: Callable[[], str],
    ) -> None:
        """Say that the server is ready, and from now on how it does.

        Args:
            supervisor: keeps the tasks for that running.
            nursery: ends them.
            stop: set when the server begins to stop.
            status: how it does, in one line.
        """
        self._say("READY=1")
        if self._socket is None:
            return

        keep = partial(supervisor.start, nursery=nursery)
        # Each on its own: a fault in one, and the pause after it, must not look like a standstill.
        keep("telling the service manager the status", partial(self._show_status, stop, status))
        keep("telling the service manager of the end", partial(self._show_end, stop))
        if self._watchdog_seconds is not None:
            half = self._watchdog_seconds / 2
            keep("telling the service manager that all is well", partial(self._show_life, half))

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that settings are read again while the block lasts."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self._say("RELOADING=1", f"MONOTONIC_USEC={now}")
        try:
            yield
        finally:
            self._say("READY=1")

    async def _show_status(self, stop: trio.Event, status: Callable[[], str]) -> None:
        shown = ""
        while not stop.is_set():
            text = status()
            if text != shown or self._unsaid:
                self._say(f"STATUS={text}")
                shown = text
            await trio.sleep(_STATUS_SECONDS)

    async def _show_life(self, seconds: float) -> None:
        while True:
            self._say("WATCHDOG=1")
            await trio.sleep(seconds)

    async def _show_end(self, stop: trio.Event) -> None:
        await stop.wait()
        self._say("STOPPING=1", "STATUS=stopping: stores what has arrived")
        with trio.move_on_after(_MOST_SECONDS):
            while True:
                self._say(f"EXTEND_TIMEOUT_USEC={_MORE_SECONDS * 1_000_000}")
                await trio.sleep(_EXTEND_SECONDS)

    def _say(self, *lines: str) -> None:
        if self._socket is None:
            return
        message = (*self._unsaid, *lines)
        self._unsaid = [line for line in message if line in _MUST_ARRIVE]
        try:
            self._socket.sendto("\n".join(message).encode(), self._address)
        except BlockingIOError:
            return  # the manager does not read at the moment
        except OSError as error:
            if not self._has_complained:
                reason = error.strerror or error  # a path that is too long has no number
                logger.warning("the service manager cannot be told anything: %s", reason)
            self._has_complained = True
            return
        self._unsaid, self._has_complained = [], False


def _address(name: str) -> str:
    """The address of a socket, in the file system or abstract; empty for what is neither."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else ""


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """How long the process may say nothing; None: as long as it likes."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return microseconds / 1_000_000 if microseconds > 0 else None
