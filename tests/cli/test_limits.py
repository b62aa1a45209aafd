"""Limits and truncation that remove nothing say so, and what helps."""

from tests.support.command_line import CommandLine


def publish(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s").code == 0
    assert streamd("publish", "s", stdin=b'{"body": "hello"}\n').code == 0


def test_limits_leave_the_segment_that_grows(streamd: CommandLine) -> None:
    publish(streamd)
    ended = streamd("stream", "set", "s", "--max-length-bytes", "10")
    assert ended.code == 0
    said, advice = ended.notes.split("; ", 1)
    assert said == "changed s"
    assert advice.startswith("its one segment, ")
    assert "--segment-size" in advice
    assert streamd("stream", "set", "s", "--chunk-max-records", "9").notes == "changed s\n"


def test_without_messages_nothing_is_said(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s").code == 0
    assert streamd("stream", "set", "s", "--max-age", "1h").notes == "changed s\n"


def test_a_truncation_within_the_first_chunk(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s").code == 0
    assert streamd("publish", "s", stdin=b'{"body": "hello"}\n' * 2).code == 0
    begins, nothing = streamd("stream", "truncate", "s", "--before", "1").notes.splitlines()
    assert begins == "s begins at offset 0"
    assert nothing.startswith("nothing was removed: offset 1 is in the first chunk")
    assert streamd("stream", "truncate", "s", "--before", "2").notes == "s begins at offset 2\n"
    assert streamd("stream", "truncate", "s", "--before", "2").notes == "s begins at offset 2\n"
