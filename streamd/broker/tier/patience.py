"""Asking the store for many things at once, again and again while it is away."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import trio

from segments.errors import SegmentsError
from segments.store.object_store import (
    ConflictError,
    DeniedError,
    MissingError,
    TierError,
    UnsupportedError,
)
from streamd.broker.tier.requests import ask
from streamd.net import threads

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE = 16  # requests; threads wait for most of their time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds
_FINAL = (DeniedError, MissingError, ConflictError, UnsupportedError)


async def retry_store(
    work: Callable[..., Result], *arguments: object, seconds: float = 60.0
) -> Result:
    """Ask the store; while it is away, again until some time is over.

    Raises:
        TierError: the last one, or one that waiting does not help against.
    """
    give_up_at, pause, told = trio.current_time() + seconds, _FIRST_PAUSE, ""
    while True:
        try:
            return await ask(work, *arguments)
        except TierError as error:
            if isinstance(error, _FINAL) or trio.current_time() + pause > give_up_at:
                raise
            if str(error) != told:
                told = str(error)
                logger.warning("%s; it is tried again for up to %.0f s", told, seconds)
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def each(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    seconds: float = 60.0,
    asks: bool = True,
) -> list[Result | SegmentsError]:
    """The same for many, several at once: what came out, in their order.

    What this program raises on purpose is a result; anything else ends all of it.

    Args:
        work: what is done with each of them, in a thread.
        items: the many.
        seconds: see `retry_store`.
        asks: the store is asked; else it is done once, and on the disk alone.
    """
    wanted = list(items)
    found: dict[int, Result | SegmentsError] = {}
    numbers = iter(range(len(wanted)))

    async def go_on() -> None:
        for number in numbers:
            try:
                if asks:
                    found[number] = await retry_store(work, wanted[number], seconds=seconds)
                else:
                    found[number] = await threads.in_thread(work, wanted[number])
            except SegmentsError as error:
                found[number] = error

    async with trio.open_nursery() as nursery:
        for _ in range(min(_AT_ONCE, len(wanted))):
            nursery.start_soon(go_on)
    return [found[number] for number in range(len(wanted))]
