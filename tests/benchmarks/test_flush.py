"""The comparison of flush modes runs, and shows a figure for each."""

from pathlib import Path

from click.testing import CliRunner

from benchmarks.flush import main


def test_a_small_run(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--scale", "0.002", "--data", str(tmp_path)]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0
    for expected in ("os", "interval", "always", "100 B, 100 per frame", "µs"):
        assert expected in result.output
