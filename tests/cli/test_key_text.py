"""What `stream info` says of the key index."""

import pytest

from streamd.cli.streams import _key_text

LONG = (
    "2.0 kB; 1,000 of 1,200 full segments are indexed, 7 have not been looked at since the "
    "server's start; find scans the others"
)


@pytest.mark.parametrize(
    ("sealed", "indexed", "unknown", "text"),
    [
        (0, 0, 0, "2.0 kB; no segment is full yet"),
        (12, 12, 0, "2.0 kB; all 12 full segments are indexed"),
        (12, 11, 0, "2.0 kB; 11 of 12 full segments are indexed; find scans the others"),
        (
            1_200,
            1_000,
            7,
            LONG,
        ),
    ],
)
def test_it_is_told_to_people(sealed: int, indexed: int, unknown: int, text: str) -> None:
    figures = {
        "key_segments_sealed": sealed,
        "key_segments_indexed": indexed,
        "key_segments_unknown": unknown,
        "key_index_bytes": 2_000,
    }
    assert _key_text(figures) == text
