"""`python -m tests.churn`: many clients and a real server; see run.py."""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.churn.run import Churn
from tests.support.stores import KINDS


def main() -> None:
    """Run, print the result, and exit with 1 when something did not hold."""
    parser = argparse.ArgumentParser(description="Many clients at once, each answer judged.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None, help="of a run before")
    parser.add_argument("--keep", type=Path, help="an empty folder, which keeps data and log")
    parser.add_argument("--store", choices=KINDS, default="file", help="of the tier")
    given = parser.parse_args()
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    logging.disable(logging.CRITICAL)  # what clients say whose server is gone
    with tempfile.TemporaryDirectory(prefix="streamd-churn-") as folder:
        churn = Churn(given.keep or Path(folder), given.seconds, given.clients, seed, given.store)
        report = churn.run()
    print(report.text)
    again = (
        f"--seconds {given.seconds:g} --clients {given.clients} --seed {seed} --store {given.store}"
    )
    print(f"again: python -m tests.churn {again}")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
