"""Some of the requests at which a server can be paused; `paused.py` tries each."""

from pathlib import Path

import pytest

from tests.broker.tier.paused import paused_at


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_paused_server_harms_nothing(tmp_path: Path, *, is_after: bool) -> None:
    for number in (2, 7, 18):
        assert await paused_at(number, tmp_path / f"{number}", is_after=is_after)
