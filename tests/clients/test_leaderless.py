"""A node of a cluster that nobody leads for a moment: publishers wait, and are not refused."""

from typing import Any

import pytest
import trio

from clients import ConnectionLost
from clients.errors import ServerRefused, StreamError, refusal
from clients.reconnecting import Ids
from streamd.wire.stream import ResponseCode, commands as c


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
