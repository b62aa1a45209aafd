"""`python -m tests.support.impatient serve …`: a server whose refusals come almost at once.

Tests at virtual time prove that wrong passwords wait, and how long; those of real servers that
only see a refusal do not wait with them.
"""

from streamd import config
from streamd.__main__ import run

if __name__ == "__main__":
    config.REFUSAL_SECONDS = 0.1  # before others take it from there
    run()
