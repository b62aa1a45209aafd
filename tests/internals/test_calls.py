"""How many functions a published frame passes, from its bytes to the last send: on a warm server.

At low rates that is most of what a message costs. A change that needs more says so here.
"""

import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from benchmarks.raw_connection import RawConnection
from benchmarks.reading import NEXT
from streamd.config import Config
from streamd.server import Server, serve
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.publish import Outgoing, encode_entries
from tests.internals.walks import Trace

_MESSAGES, _FRAMES, _WARM = 100, 30, 20


class Rounds(list[Trace]):
    """What is called in each round of the poller."""

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_qualname == "Poller._take_round":
            self.append(Trace())
        if self:
            self[-1].note(frame, event, argument)

    def publishing(self) -> list[int]:
        """Of each round in which something was published: calls from its bytes to the last send."""
        found = []
        for names in ([name for _, name in trace] for trace in self):
            if "Publishers.publish" in names:
                sent = len(names) - names[::-1].index("SocketTransport.send_some")
                found.append(sent - names.index("Connection.receive_data"))
        return found


def publish(server: Server, *, consumes: bool) -> None:
    """Publish a frame at a time, and have it delivered; in a thread, which is not recorded."""
    port = server.addresses["stream"].port
    with RawConnection("127.0.0.1", port) as producer, RawConnection("127.0.0.1", port) as reader:
        producer.request(c.Create, "s", ())
        producer.request(c.DeclarePublisher, 0, "", "s")
        if consumes:
            reader.request(c.Subscribe, 0, "s", NEXT, 100, ())
        for first in range(0, _FRAMES * _MESSAGES, _MESSAGES):
            messages = [Outgoing(first + n, b"x" * 100) for n in range(_MESSAGES)]
            producer.socket.sendall(encode(c.Publish(0, _MESSAGES, encode_entries(messages))))
            producer.wait_for(c.PublishConfirm)
            if consumes:
                reader.wait_for(c.Deliver)


async def recorded(data: Path, *, consumes: bool) -> list[int]:
    config = Config(data=str(data), stream_port=0, amqp_port=None, http_port=None)
    stop, rounds = trio.Event(), Rounds()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(partial(serve, config, stop=stop))
        before = sys.getprofile()
        sys.setprofile(rounds.note)
        try:
            await trio.to_thread.run_sync(partial(publish, server, consumes=consumes))
        finally:
            sys.setprofile(before)
        stop.set()
    return rounds.publishing()[_WARM:]


@pytest.mark.parametrize(("consumes", "most"), [(False, 75), (True, 130)])
def test_a_published_frame(tmp_path: Path, consumes: bool, most: int) -> None:
    calls = trio.run(partial(recorded, tmp_path, consumes=consumes))
    assert 0 < min(calls) <= most
