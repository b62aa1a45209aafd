"""The demo's last part: tune a stream from its history, apply that, and check the prediction."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio
from rich.box import SIMPLE
from rich.table import Table

from segments.words import size
from streamd.cli.terminal import Failed
from streamd.cli.tune import changes_of, run_tuning

if TYPE_CHECKING:
    from clients import Client
    from segments.spark.observed import Observed
    from segments.spark.tuning import Tuning

FILTER_SIZE = 16  # the default


class Tuned(NamedTuple):
    """A recommendation, and the filters before and after it.

    Attributes:
        tuning: the recommendation, with its prediction.
        before: the filters of the first publication.
        after: those of the second one, with the recommendation applied.
    """

    tuning: "Tuning"
    before: "Observed"
    after: "Observed"


async def tune_and_check(
    client: "Client",
    stream: str,
    folder: str,
    publish: Callable[[], Awaitable[None]],
    advance: Callable[[str], None],
) -> Tuned | str:
    """Publish, tune, apply, publish the same again.

    Returns:
        The result; or a sentence that says what has to be installed.
    """
    advance("publishing with filters of 16 bytes")
    await publish()
    advance("tuning from the stream's own history, in Spark")
    try:
        tuning = await trio.to_thread.run_sync(partial(run_tuning, folder, quiet=True))
    except Failed as error:
        return error.message
    from segments.spark.observed import observe  # noqa: PLC0415 - an extra

    before = await trio.to_thread.run_sync(observe, folder, tuning.wanted)
    advance("publishing again, as recommended")
    await client.set_arguments(stream, changes_of(tuning))
    await publish()
    after = await trio.to_thread.run_sync(observe, folder, tuning.wanted, before.messages)
    return Tuned(tuning, before, after)


def table(tuned: Tuned) -> Table:
    """A table of the figures now, predicted and observed."""
    now, then = tuned.tuning.current, tuned.tuning.recommended
    made = Table(
        title=(
            f"streamd tune: filters of {then.filter_size} bytes, {then.chunk_records} messages per "
            f"chunk (now {now.filter_size}, {now.chunk_records})"
        ),
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        padding=0,
    )
    made.add_column("\nflights by dest, asked for as often as they go there")
    for heading in ("\nnow", "pre-\ndicted", "ob-\nserved"):
        made.add_column(heading, justify="right")
    before, after = tuned.before, tuned.after
    rows = (
        (
            "chunks",
            *(f"{number:,}" for number in (before.chunks, then.chunks, after.chunks)),
        ),
        (
            "chunks without the value that the filter lets through",
            *(
                f"{rate:.2%}"
                for rate in (
                    before.false_positive_rate,
                    then.false_positive_rate,
                    after.false_positive_rate,
                )
            ),
        ),
        (
            "stored for filters, headers and history",
            *(
                size(round(number))
                for number in (before.stored_bytes, then.stored_bytes, after.stored_bytes)
            ),
        ),
        (
            "delivered to a reader, on average",
            *(
                size(round(number))
                for number in (before.delivered_bytes, then.delivered_bytes, after.delivered_bytes)
            ),
        ),
    )
    for row in rows:
        made.add_row(*row)
    return made


def in_words(tuned: Tuned) -> str:
    """The table in a paragraph."""
    then, after = tuned.tuning.recommended, tuned.after
    return f"""\
[bold]Tuning.[/bold] `streamd tune` replayed the stream's history (each chunk lists its filter \
values) with other filter sizes and chunk limits, in Spark. It predicted that filters of \
{then.filter_size} bytes and {then.chunk_records} messages per chunk let through \
{then.false_positive_rate:.2%} of the chunks that do not hold what a reader wants; after applying \
that to the running stream and publishing the same flights again it was \
{after.false_positive_rate:.2%}, tested on every chunk that was written."""
