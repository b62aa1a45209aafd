"""Which folders may be removed when a stream begins in their place."""

from pathlib import Path

import pytest

from segments.codec import FILE_HEADER_SIZE
from streamd.broker.orphans import has_messages

EMPTY = b"\0" * FILE_HEADER_SIZE
SEGMENT = "0" * 20 + ".segment"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({SEGMENT: EMPTY}, False),
        ({SEGMENT: EMPTY + b"a chunk"}, True),
        ({SEGMENT: EMPTY, "manifest": b"{}"}, True),  # its messages are in the tier
        ({SEGMENT: EMPTY, "tier-0123": b""}, True),  # the same, and its manifest is lost
    ],
)
def test_a_folder_that_may_have_messages_is_kept(
    tmp_path: Path, files: dict[str, bytes], expected: bool
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert has_messages(tmp_path) is expected


def test_there_is_no_folder(tmp_path: Path) -> None:
    assert not has_messages(tmp_path / "none")
