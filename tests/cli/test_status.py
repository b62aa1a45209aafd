"""`streamd status` and `ping`: whether the server is well, and why not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, command_line

LOGGED_IN = 7  # the frame with which a client asks for something


@pytest.fixture
def streamd(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path / "data") as commands:
        commands("stream", "create", "s")
        yield commands


def _trouble(streamd: CommandLine) -> None:
    def fail(number: int) -> None:
        if number == 1 and streamd.running is not None:
            streamd.running.host.find("s").life._cannot_open("/place: no such folder")

    streamd.on_send = fail


def test_all_is_well(streamd: CommandLine) -> None:
    ended = streamd("status")
    assert ended.code == 0
    first, streams, *_ = ended.out.splitlines()
    assert first.endswith(": all is well")
    assert streams.startswith("streams    1 stream, 0 messages")
    assert json.loads(streamd("status", "--json").out)["wrong"] == []
    assert streamd("ping", "--ready").code == 0


def test_a_stream_takes_no_messages(streamd: CommandLine) -> None:
    _trouble(streamd)
    ended = streamd("status")
    assert ended.code == 1
    first, second, third, *_ = ended.out.splitlines()
    assert first.endswith(": 1 thing to look at")
    assert second == "  ! stream s: takes no messages: /place: no such folder"
    assert third.endswith("; 1 of them takes no messages")
    (wrong,) = json.loads(streamd("status", "--json").out)["wrong"]
    assert (wrong["kind"], wrong["vhost"], wrong["stream"]) == ("stream", "/", "s")
    assert "takes no messages" not in streamd("stream", "list").notes
    assert "/place: no such folder" in streamd("stream", "list").out


def test_ping_tells_it(streamd: CommandLine) -> None:
    _trouble(streamd)
    ended = streamd("ping")
    assert ended.code == 0
    assert ended.out.endswith(", but some streams accept no messages\n")
    assert streamd("ping", "--ready").code == 1
