"""A few clients for some seconds; `make churn` runs more of them for longer."""

import logging
from pathlib import Path

import pytest

from tests.churn.run import Churn


@pytest.mark.slow
def test_every_answer_is_explained_while_many_act(tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)  # what pika says whose channel was closed
    try:
        report = Churn(tmp_path, seconds=8, clients=6, seed=1).run()
    finally:
        logging.disable(logging.NOTSET)
    assert not report.faults, report.text
    assert report.num_operations > 100
