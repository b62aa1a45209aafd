"""A few clients for some seconds, and some orders of few requests; `make churn` takes longer."""

import logging
from pathlib import Path

import pytest

from tests.churn.interleavings import Interleaving, try_seeds
from tests.churn.run import Churn
from tests.churn.seeking import Seeking

SEEDS = range(1, 46)


# httpx leaves a generator behind where a request is cancelled; the collector finds it here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_every_answer_is_explained_while_many_act(tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)  # what pika says whose channel was closed
    try:
        report = Churn(tmp_path, seconds=8, clients=6, seed=1).run()
    finally:
        logging.disable(logging.NOTSET)
    assert not report.faults, report.text
    assert report.num_operations > 100


@pytest.mark.slow
def test_what_was_confirmed_is_found_after_kills(tmp_path: Path) -> None:
    for seconds in (4, 16, 64):  # a busy machine finds nothing in the first few
        folder = tmp_path / str(seconds)
        folder.mkdir()
        run = Seeking(folder, seconds=seconds, seekers=2, seed=1, kill_seconds=2.5)
        assert run.run() == []
        assert run.num_kills
        if run.seekers.num_found:
            break
    assert run.seekers.num_found


def test_every_answer_is_explained_in_any_order() -> None:
    found: list[str] = []

    def tell(seed: int, faults: list[str]) -> bool:
        found.extend(f"seed {seed}: {fault}" for fault in faults)
        return not found

    assert try_seeds(SEEDS, tell) == len(SEEDS), found
    assert found == []


def test_a_seed_repeats_its_run(tmp_path: Path) -> None:
    answers = []
    for name in ("one", "other"):
        run = Interleaving(tmp_path / name, 7)
        assert run.run() == []
        answers.append([str(r) for history in run.world.histories for r in history.requests])
    assert answers[0] == answers[1]
