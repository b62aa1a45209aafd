"""The comparison's table and JSON from recorded figures, and a small run of it."""

import json
import mmap
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import exact, page_cache
from benchmarks.compare import main
from benchmarks.peer import SCRIPT, is_ready, running
from benchmarks.report import Recorded, Report, as_json, from_json, number, summary, tables
from benchmarks.rows import ORDER_STAGES, STAGES, Figure, Goal, at_least, at_most

ABOUT = {"date": "2026-11-21", "cores": 2, "rounds": 3, "scale": 1.0, "peer": True}
RATE = Figure("rate", "msg/s", at_least(2), is_least=True)
CPU = Figure("cpu", "CPU", at_most(0.4))
BYTES = Figure("beyond", "kB", Goal(0, is_ratio=False))
SHARE = Figure("share", "share")
REPORT = Report(
    ABOUT,
    [
        Recorded("publish", RATE, [300.0, 100.0, 250.0], [100.0, 90.0, 200.0]),
        Recorded("publish", CPU, [0.5], [1.0]),
        Recorded("sealed", BYTES, [0.0], []),
        Recorded("sealed", SHARE, [0.0], [50.0]),
        Recorded("start", CPU, [3.0], []),
    ],
    ["start, RabbitMQ: it was running already"],
)


def test_ratios_are_of_medians_and_goals_are_judged() -> None:
    assert [it.ratio for it in REPORT.figures] == [2.5, 0.5, None, 0.0, None]
    assert [it.is_reached for it in REPORT.figures] == [True, False, True, None, None]
    assert summary(REPORT) == "2 of 3 goals reached"


def test_the_table_has_every_figure() -> None:
    console = Console(width=140, record=True, file=None)
    with console.capture() as capture:
        for table in tables(REPORT):
            console.print(table)
    lines = [line.split() for line in capture.get().splitlines() if line.strip()]
    assert ["publish", "msg/s", "100", "250", "2.5", "×", "≥", "2", "×", "yes"] in lines
    assert ["CPU", "1", "0.5", "0.5", "×", "≤", "0.4", "×", "NO"] in lines


def test_each_peer_has_a_table_of_its_own() -> None:
    beside = Recorded("orders", CPU, [1.0], [4.0], "RocketMQ")
    first, second = tables(REPORT._replace(figures=[*REPORT.figures, beside]))
    assert [column.header for column in first.columns][2:4] == ["RabbitMQ", "streamd"]
    assert [column.header for column in second.columns][2:4] == ["RocketMQ", "streamd"]
    assert (first.row_count, second.row_count) == (len(REPORT.figures), 1)
    assert from_json(as_json(REPORT._replace(figures=[beside]))).figures == [beside]


def test_files_of_before_are_beside_rabbitmq() -> None:
    written = as_json(REPORT)
    for figure in written["figures"]:
        del figure["peer_name"]
    assert from_json(written) == REPORT


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    written = json.dumps(as_json(REPORT))
    assert from_json(json.loads(written)) == REPORT
    file = tmp_path / "run.json"
    file.write_text(written)
    shown = CliRunner().invoke(main, ["--recorded", str(file)])
    assert shown.exit_code == 0
    assert "2 of 3 goals reached" in shown.stdout
    assert "it was running already" in shown.stdout


def test_the_chart_says_how_many_times_better(tmp_path: Path) -> None:
    chart = pytest.importorskip("benchmarks.chart", exc_type=ImportError)
    first, second = chart.bars(REPORT.figures)
    assert (first.better, first.goal, first.is_reached) == (2.5, 2, True)
    assert (second.better, second.goal, second.is_reached) == (2.0, 2.5, False)
    chart.draw(REPORT, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_have_three_digits_that_count() -> None:
    assert [number(n) for n in (1234567.8, 99.96, 0.012345, 0)] == [
        "1,234,568",
        "100",
        "0.0123",
        "0",
    ]


def test_names_are_distinct() -> None:
    rows = [row for stage in (*STAGES, *ORDER_STAGES) for row in stage.rows]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert len({figure.key for figure in row.figures}) == len(row.figures)


def test_a_small_run_without_a_peer() -> None:
    rows = (
        "publish 10 B",
        "20 connections",
        "50,000 chunks",
        "sealed segments",
        "end to end, 1,000",
        "100 consumers",
    )
    only = [part for row in rows for part in ("--only", row)]
    arguments = ["--alone", "--rounds", "1", "--scale", "0.005", "--json", *only]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["figures"]
    assert {it["row"].split(",")[0].split(" of")[0] for it in figures} >= {"publish 10 B"}
    assert len({it["row"] for it in figures}) == len(rows)
    assert all(len(it["streamd"]) == 1 and not it["peer"] for it in figures), figures
    (beyond,) = (it for it in figures if it["key"] == "beyond")
    assert beyond["streamd"] == [0.0]


def test_a_small_run_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "drop", lambda _folder, _pid: None)  # root may do that
    names = ("orders:", "runs, sealed", "scattered, sealed, cold: tag", "orders, sealed")
    only = [part for name in names for part in ("--only", name)]
    arguments = ["--alone", "--rounds", "1", "--scale", "0.002", "--json", *only]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (note,) = report["notes"]  # each number of messages was right
    assert "no RocketMQ: streamd alone" in note
    assert "rocketmq.sh setup" in note
    assert len({it["row"] for it in report["figures"]}) == 15
    assert {it["peer_name"] for it in report["figures"]} == {"RocketMQ"}
    assert all(len(it["streamd"]) == 1 and it["streamd"][0] > 0 for it in report["figures"])


def test_a_wrong_number_of_messages_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "number_chosen", lambda _choice, _orders: 7)
    arguments = [
        "--alone",
        "--rounds",
        "1",
        "--scale",
        "0.0001",
        "--json",
        "--only",
        "tag, 1 %, find",
    ]
    report = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert (
        "orders: tag, 1 %, find, streamd: a round failed: 2 messages, 7 expected" in report["notes"]
    )
    assert all(it["streamd"] == [] for it in report["figures"])


def is_cached(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


def test_mapped_files_are_taken_out_of_the_page_cache_as_well(tmp_path: Path) -> None:
    plain, mapped = tmp_path / "plain", tmp_path / "mapped"
    for path in (plain, mapped):
        path.write_bytes(b"x" * 100_000)
    with mapped.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:] = b"y" * 100_000
        assert is_cached(mapped)
        try:
            page_cache.drop(tmp_path, os.getpid())
        except PermissionError:
            pytest.skip("only root may do that")
        if is_cached(plain):
            pytest.skip("files are in memory alone here")
        assert not is_cached(mapped)
        assert memory[:] == b"y" * 100_000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--peer", "x:y"], "is not a port and a process id"),
        (["--alone", "--only", "none such"], "no row has such a name"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], reason: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert reason in done.stderr


def test_the_script_says_how_rabbitmq_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEER_DIR", str(tmp_path))
    assert not is_ready(SCRIPT)
    assert running(SCRIPT) is None
    started = subprocess.run([SCRIPT, "start"], capture_output=True, text=True, check=False)
    assert started.returncode == 1
    assert f"run {SCRIPT} setup, as root" in started.stderr


def test_the_script_says_how_rocketmq_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEER_ROCKETMQ_DIR", str(tmp_path))
    assert not is_ready(exact.ROCKETMQ_SCRIPT)
    assert running(exact.ROCKETMQ_SCRIPT) is None
    command = [exact.ROCKETMQ_SCRIPT, "start"]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    assert started.returncode == 1
    assert f"run {exact.ROCKETMQ_SCRIPT} setup" in started.stderr
