"""The last hour: rates and latencies in memory, for pictures.

One task takes samples of what `Traffic` counts. It also measures how late the event loop comes to a
task that is due, which is all that it needs to be awake for four times a second.

All of it is bounded: an hour of samples of the server, and for MOST_STREAMS streams one of coarser
samples each. A stream has samples while something happened in it within the last hour.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable

import trio

from streamd.broker.streams.log_life import StreamState
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import NOTHING, Traffic
from streamd.net.turns import in_turns
from streamd.operations.figures import Flow
from streamd.operations.server import Moment
from streamd.operations.streams import StreamMoment

INTERVAL_SECONDS = 5
STREAM_INTERVAL_SECONDS = 20
MOST_STREAMS = 2_000
_HOUR = 3_600
_SAMPLES = _HOUR // INTERVAL_SECONDS
_STREAM_SAMPLES = _HOUR // STREAM_INTERVAL_SECONDS
_EVERY = STREAM_INTERVAL_SECONDS // INTERVAL_SECONDS
_BEAT_SECONDS = 0.25  # an idle server sleeps well: each costs a quarter of a millisecond
_RATES = 4  # numbers in a sample of a stream


class _Samples:
    """The samples of one stream, in as little memory as they need."""

    __slots__ = ("_rates", "_times", "last_use")

    def __init__(self) -> None:
        self._times = array("q")
        self._rates = array("f")
        self.last_use = 0

    def add(self, at_ms: int, rates: Iterable[float]) -> None:
        self._times.append(at_ms)
        self._rates.extend(rates)
        if len(self._times) > _STREAM_SAMPLES:
            del self._times[0]
            del self._rates[:_RATES]

    def latest(self) -> StreamMoment | None:
        return StreamMoment(self._times[-1], *self._rates[-_RATES:]) if self._times else None

    def shown(self) -> list[StreamMoment]:
        rates = self._rates
        return [
            StreamMoment(at_ms, *rates[n * _RATES : (n + 1) * _RATES])
            for n, at_ms in enumerate(self._times)
        ]


class History:
    """The last hour of one server.

    Args:
        traffic: what is sampled.
        streams: those that there are.
        now_ms: the wall clock.
    """

    def __init__(
        self, traffic: Traffic, streams: Callable[[], list[Stream]], now_ms: Callable[[], int]
    ) -> None:
        self._traffic = traffic
        self._streams = streams
        self._now_ms = now_ms
        self._moments: deque[Moment] = deque(maxlen=_SAMPLES)
        self._of_streams: dict[Stream, _Samples] = {}
        self._num_samples = 0
        self._longest_delay = 0.0
        self._flow = NOTHING
        self._last = trio.current_time(), NOTHING, list(traffic.confirm_seconds.counts)
        self._streams_at = trio.current_time()

    def server(self) -> list[Moment]:
        """The server, the oldest first."""
        return list(self._moments)

    def stream(self, stream: Stream) -> list[StreamMoment]:
        """A stream, the oldest first; empty when nothing has happened in it."""
        found = self._of_streams.get(stream)
        return [] if found is None else found.shown()

    def latest(self, stream: Stream) -> StreamMoment | None:
        """The last one of a stream; None when nothing has happened in it."""
        found = self._of_streams.get(stream)
        return None if found is None else found.latest()

    async def run(self) -> None:
        """Work until cancelled."""
        next_sample = trio.current_time() + INTERVAL_SECONDS
        while True:
            due = trio.current_time() + _BEAT_SECONDS
            await trio.sleep_until(due)
            delay = max(0.0, trio.current_time() - due)
            self._traffic.loop_delay_seconds.observe(delay)
            self._longest_delay = max(self._longest_delay, delay)
            late = trio.current_time() - next_sample
            if late >= 0:
                next_sample += INTERVAL_SECONDS * (1 + late // INTERVAL_SECONDS)
                await self.add_up()
                self.sample()
                if self._num_samples % _EVERY == 0:
                    await self.sample_streams()

    async def add_up(self) -> None:
        """Find what has gone through the server: through streams that are there, and that were."""
        total, streams = self._traffic.flow_of_the_gone(), self._streams()
        async for stream in in_turns(streams):
            total = total.plus(stream.traffic.flow())
        self._flow = total

    def sample(self) -> None:
        """Take a sample of the server, of what was added up last."""
        then, before, confirms = self._last
        now, histogram = trio.current_time(), self._traffic.confirm_seconds
        self._last = now, self._flow, list(histogram.counts)
        p50, p99 = histogram.quantile(0.5, confirms), histogram.quantile(0.99, confirms)
        rates = _rates(self._flow, before, now - then)
        self._moments.append(Moment(self._now_ms(), *rates, p50, p99, self._longest_delay))
        self._longest_delay = 0.0
        self._num_samples += 1

    async def sample_streams(self) -> None:
        """Take a sample of each stream in which something has happened; forget those gone."""
        now, at_ms, number = trio.current_time(), self._now_ms(), self._num_samples
        seconds, self._streams_at = now - self._streams_at, now
        kept = self._of_streams
        for stream in [one for one in kept if one.state is StreamState.GONE]:
            del kept[stream]
        async for stream in in_turns(self._streams()):
            traffic = stream.traffic
            flow, before = traffic.flow(), traffic.sampled
            samples = kept.get(stream)
            if _shown(flow) == _shown(before):
                if samples is not None:
                    samples.add(at_ms, (0.0,) * _RATES)
                    if number - samples.last_use >= _SAMPLES:
                        del kept[stream]
                continue
            if (
                samples is None
                and len(kept) < MOST_STREAMS
                and stream.state is not StreamState.GONE
            ):
                samples = kept[stream] = _Samples()
            if samples is not None:
                samples.add(at_ms, _rates(flow, before, seconds))
                samples.last_use = number
            traffic.sampled = flow


def _shown(flow: Flow) -> tuple[int, int, int, int]:
    return flow.messages_in, flow.messages_out, flow.bytes_in, flow.bytes_out


def _rates(now: Flow, before: Flow, seconds: float) -> tuple[float, float, float, float]:
    span = max(seconds, 1e-3)
    a, b, c, d = (max(0, n - m) / span for n, m in zip(_shown(now), _shown(before), strict=True))
    return a, b, c, d
