"""A node of a cluster that nobody leads for a moment: publishers wait, and are not refused."""

from pathlib import Path
from typing import Any

import pytest
import trio

from clients import ConnectionLost, Message
from clients.errors import ServerRefused, StreamError, StreamNotAvailable, refusal
from clients.reconnecting import Ids
from streamd.wire.stream import ResponseCode, commands as c
from tests.support.client import Network
from tests.support.server import harness


class _Connection:
    def __init__(self, *, is_read_only: bool, is_spread: bool = False) -> None:
        self.is_read_only, self.is_spread = is_read_only, is_spread


class _Refused:
    """Is refused whenever it is opened."""

    stream = "s"

    def __init__(self, code: int) -> None:
        self._code = code
        self.error: StreamError | None = None

    async def open(self, _connection: object, _number: int) -> None:
        await trio.lowlevel.checkpoint()
        raise refusal(self._code, "cannot publish to s")

    def failed(self, error: StreamError) -> None:
        self.error = error


def _reopened(
    kind: Any, code: int, *, is_read_only: bool = False, is_spread: bool = False
) -> StreamError | None:
    """What came of one that was open, when its connection was made again."""
    ids, listener = Ids(kind), _Refused(code)
    place = ids.take(listener)  # type: ignore[arg-type]
    place.is_open = True
    trio.run(ids.reopen, _Connection(is_read_only=is_read_only, is_spread=is_spread))
    return listener.error


def test_a_publisher_tries_again() -> None:
    away = ResponseCode.STREAM_NOT_AVAILABLE
    with pytest.raises(ConnectionLost):
        _reopened(c.DeletePublisher, away, is_read_only=True)


@pytest.mark.parametrize(
    ("kind", "code", "is_read_only"),
    [
        (c.DeletePublisher, ResponseCode.STREAM_NOT_AVAILABLE, False),
        (c.DeletePublisher, ResponseCode.PRECONDITION_FAILED, True),
        (c.Unsubscribe, ResponseCode.STREAM_NOT_AVAILABLE, True),
    ],
)
def test_others_are_told(kind: Any, code: int, *, is_read_only: bool) -> None:
    assert isinstance(_reopened(kind, code, is_read_only=is_read_only), ServerRefused)


@pytest.mark.parametrize("kind", [c.DeletePublisher, c.Unsubscribe])
def test_where_streams_have_other_leaders_all_try_again(kind: Any) -> None:
    with pytest.raises(ConnectionLost):
        _reopened(kind, ResponseCode.STREAM_NOT_AVAILABLE, is_spread=True)
    gone = _reopened(kind, ResponseCode.STREAM_DOES_NOT_EXIST, is_spread=True)
    assert isinstance(gone, ServerRefused)


async def test_nobody_uses_a_stream_whose_arguments_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages would be stored without the filter values that consumers ask for."""
    async with harness(tmp_path) as server, Network(server, monkeypatch).client() as client:
        arguments = {"stream-filter-property": "region", "stream-filter-derive": "false"}
        await client.create("s", arguments=arguments)
        engine = server.server.engine
        known = engine.refresh

        async def silent(*_: object) -> dict[str, None]:
            await trio.lowlevel.checkpoint()
            return {"s": None}  # who leads it does not answer

        engine.refresh = silent  # type: ignore[assignment]
        with pytest.raises(StreamNotAvailable):
            async with client.producer("s"):
                pass
        for words in ({}, {"filter_values": ["EU"], "filter_value": "region"}):
            with pytest.raises(StreamNotAvailable):
                async with client.consumer("s", **words):  # type: ignore[arg-type]
                    pass
        engine.refresh = known
        async with client.producer("s") as producer:
            await producer.send(Message(b"", application_properties={"region": "EU"}))
        words = {"filter_values": ["EU"], "filter_value": "region"}
        async with client.consumer("s", offset="first", until_end=True, **words) as found:  # type: ignore[arg-type]
            assert [message.offset async for message in found] == [0]
