"""How long to wait after a failure: twice as long each time, with some of it by chance."""

import random

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds


def next_pause(pause: float) -> float:
    """Seconds to wait after another failure; 0 before the first."""
    return min(2 * pause, LONGEST_PAUSE) if pause else FIRST_PAUSE


def shortened(pause: float) -> float:
    """A pause of which a part is left to chance, so that not all come back at once."""
    return pause * random.uniform(0.5, 1)  # noqa: S311 - no secret
