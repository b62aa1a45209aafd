"""What a kill or a power failure can leave of a stream: a sample; `make crashes` tries more."""

import pytest

from streamd.broker.streams.flusher import FlushMode
from tests.crash.states import try_states


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_state_keeps_what_its_mode_promises(mode: FlushMode, seed: int) -> None:
    kinds = try_states(mode, seed, 100)
    assert kinds["repaired"] > 10  # the sample holds states that are worth trying
    assert kinds["crashed twice"] > 5
