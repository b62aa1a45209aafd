"""stdin and stdout beside a client: whoever writes or reads there may take as long as it likes.

The event loop goes on meanwhile, so that the connection lives, and Ctrl-C is heard.
"""

import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import BinaryIO

import click
import trio

from streamd.cli.terminal import descriptor_of, stdout_encoding, telling_of_stdout


@contextmanager
def until_interrupted() -> Iterator[trio.CancelScope]:
    """Leave the block in order when SIGINT comes; a second one ends everything at once."""
    token = trio.lowlevel.current_trio_token()
    before = signal.getsignal(signal.SIGINT)

    def leave(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        token.run_sync_soon(scope.cancel)

    with trio.CancelScope() as scope:
        if before is not signal.SIG_IGN:  # as for jobs in the background
            signal.signal(signal.SIGINT, leave)
        try:
            yield scope
        finally:
            signal.signal(signal.SIGINT, before)


async def write_lines(lines: Sequence[str]) -> None:
    """Lines on stdout, without holding up the event loop while nobody reads them.

    Raises:
        Failed: they cannot be written.
        ReaderLeft: nobody reads any more.
    """
    data = "".join(f"{line}\n" for line in lines).encode(stdout_encoding())
    with telling_of_stdout():
        descriptor = descriptor_of(sys.stdout)
        if descriptor is None or not await _waits(trio.lowlevel.wait_writable, descriptor):
            click.echo(data, nl=False)
            return
        sys.stdout.flush()
        rest = memoryview(data)
        while rest:
            await trio.lowlevel.wait_writable(descriptor)
            with suppress(BlockingIOError):  # a terminal that does not wait had room for less
                rest = rest[os.write(descriptor, rest[: _whole_lines(rest)]) :]


def _whole_lines(data: memoryview) -> int:
    """As many bytes as cannot block: whole lines, as far as one fits, or an interrupt cuts one."""
    most = bytes(data[: select.PIPE_BUF])  # when a pipe can be written to, this much fits into it
    return most.rfind(b"\n") + 1 or len(most)


async def _waits(wait: Callable[[int], Awaitable[None]], descriptor: int) -> bool:
    """Wait for a descriptor; False if it never has to be waited for, as a file on a disk."""
    try:
        await wait(descriptor)
    except PermissionError:  # as epoll says it
        await trio.lowlevel.checkpoint()
        return False
    return True


async def read_some(file: BinaryIO, size: int) -> bytes:
    """What there is to read now, at most `size` bytes; empty at the end. Waits in the event loop.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = descriptor_of(file)
    if descriptor is None:
        await trio.lowlevel.checkpoint()
        return file.read(size)
    await _waits(trio.lowlevel.wait_readable, descriptor)
    return os.read(descriptor, size)
