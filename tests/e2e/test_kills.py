"""kill -9 under load; `make kills` does it 200 times, in all flush modes."""

import logging
from pathlib import Path

import pytest

from streamd.broker.streams.flusher import FlushMode
from tests.crash.kills import kill_many


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what clients leave behind whose server is gone
def test_what_was_confirmed_survives_kills(tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)  # what clients say whose server is gone
    try:
        summary = kill_many(tmp_path, kills=3, modes=[FlushMode.ALWAYS])
    finally:
        logging.disable(logging.NOTSET)
    assert "none that was confirmed was lost" in summary
