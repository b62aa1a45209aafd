"""`streamd consume`: every message can be printed, wherever stdout leads."""

import base64
import io
import json
import os
import pty
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st

from clients import Client, Message, Properties, ReceivedMessage
from streamd.cli.common import DEFAULT_URI, run_client
from streamd.cli.consume import as_json
from streamd.cli.terminal import json_line
from tests.support.command_line import CommandLine
from tests.support.odd_messages import VALUES, odd_messages

BAD_PROPERTY = b"\x00\x53\x74\xc1\x07\x02\xa1\x01a\xa1\x01\xff"  # a = 0xFF, which is no UTF-8
BODY = b"\x00\x53\x75\xa0\x01x"


def fill(messages: Sequence[Message | bytes], value: bytes | None = None) -> None:
    """Create the stream s, and publish to it; bytes are a message's encoding."""

    async def work(client: Client) -> None:
        await client.create("s", exist_ok=True)
        async with client.producer("s") as producer:
            for message in messages:
                raw = message if isinstance(message, bytes) else message.encode()
                await producer.send_encoded(raw, value)

    run_client(DEFAULT_URI, work)


def rows(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_a_message_with_a_part_that_cannot_be_read(streamd: CommandLine) -> None:
    fill([BAD_PROPERTY + BODY, Message(b"whole"), BAD_PROPERTY + BODY])
    ended = streamd("consume", "s", "--until-end")
    assert ended.code == 0
    damaged, whole, _ = rows(ended.out)
    assert (damaged["body"], base64.b64decode(damaged["raw"])) == ("x", BAD_PROPERTY + BODY)
    assert damaged["damaged"] == "text at byte 11 is not utf-8"
    assert "raw" not in whole
    assert ended.notes.count("\n") == 1
    assert "parts that cannot be read" in ended.notes


@given(st.data())
def test_whatever_bytes_a_message_has(data: st.DataObject) -> None:
    raw = bytearray(Message(b"x", Properties(subject="s"), {"a": "b", "n": 1}).encode())
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = as_json(ReceivedMessage(bytes(raw), "s", 0, 0))
    assert json.loads(json_line(found))["offset"] == 0


def test_half_a_character() -> None:
    (half,) = (n for n, kind in enumerate(VALUES) if kind == "half a char")
    found = as_json(ReceivedMessage(odd_messages("region")[half].raw, "s", 0, 0))
    assert found["properties"] == {"other": "EU", "region": "\ufffd"}


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (Message(application_properties={"p": b"EU"}), "p", "EU"),
        (Message(properties=Properties(subject="EU")), "properties.subject", "EU"),
        (Message(application_properties={"p": "EU"}), "p", "EU"),
        (Message(application_properties={"p": 7}), "p", "7"),
        (Message(application_properties={"p": True}), "p", "true"),
    ],
)
def test_exact_matches(streamd: CommandLine, message: Message, name: str, value: str) -> None:
    other = b"no AMQP message"
    fill([message, Message(b"other"), other], value.encode())
    ended = streamd("consume", "s", "--filter", value, "--filter-property", name, "--until-end")
    assert [row["offset"] for row in rows(ended.out)] == [0]
    assert ended.notes == "printed 1 of 3 delivered messages (1 chunk)\n"


@pytest.mark.parametrize(
    "offset",
    ["²", "٣", "-1", "1e9", "1_0", "9" * 30, "0001-01-01", "9999-12-31T23:59:59", "", "2026-02-30"],
)
def test_odd_offsets(streamd: CommandLine, offset: str) -> None:
    fill([b"x"])
    ended = streamd("consume", "s", "--until-end", "--offset", offset)
    assert ended.code in {0, 2}
    assert ended.code == 0 or ended.notes.startswith(f"Error: --offset is {offset!r}, expected ")


def test_an_encoding_that_lacks_characters(streamd: CommandLine) -> None:
    fill([Message("Größe 🙂".encode())])
    streamd("stream", "create", "Größe")
    for command in (("consume", "s", "--until-end"), ("stream", "list", "--json")):
        out = io.TextIOWrapper(io.BytesIO(), "ascii")
        assert streamd(*command, stdout=out).code == 0
        assert "Größe" in json.dumps(rows(out.buffer.getvalue().decode()), ensure_ascii=False)
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    assert streamd("stream", "list", stdout=out).code == 0


def test_a_reader_that_does_not_read(streamd: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pager that nobody scrolls: the event loop goes on, and Ctrl-C is heard."""
    fill([Message(b"x" * 1000)] * 200)
    reading, writing = os.pipe()
    wait = trio.lowlevel.wait_writable

    async def interrupted(descriptor: int) -> None:
        if not select.select([], [descriptor], [], 0)[1]:
            signal.raise_signal(signal.SIGINT)
        await wait(descriptor)

    monkeypatch.setattr(trio.lowlevel, "wait_writable", interrupted)
    with os.fdopen(reading, "rb") as printed:
        with os.fdopen(writing, "w") as out:
            ended = streamd("consume", "s", stdout=out)
        assert rows(printed.read().decode())  # of whole lines
    assert (ended.code, ended.notes) == (130, "interrupted\n")


def test_a_terminal_that_does_not_wait(streamd: CommandLine) -> None:
    """As another program may have left it: what has no room yet is written later."""
    fill([Message(b"x" * 300)] * 500)
    reading, writing = pty.openpty()
    os.set_blocking(writing, False)
    found = bytearray()

    def read() -> None:
        with suppress(OSError):  # the end of a terminal
            while data := os.read(reading, 1000):
                found.extend(data)

    reader = Thread(target=read)
    reader.start()
    with os.fdopen(writing, "w") as out:
        ended = streamd("consume", "s", "--until-end", stdout=out)
    reader.join()
    os.close(reading)
    assert (ended.code, ended.notes) == (0, "")
    assert [row["offset"] for row in rows(found.decode())] == list(range(500))


def test_no_more_than_asked_for(streamd: CommandLine) -> None:
    fill([b"x"] * 10)
    ended = streamd("consume", "s", "--limit", "3")
    assert [row["offset"] for row in rows(ended.out)] == [0, 1, 2]
