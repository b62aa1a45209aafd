"""Which virtual host `streamd tune` is about: that of the stream it has looked at, or none."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from streamd.broker.names import stream_folder
from streamd.cli import main, tune as command


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of servers at which something is changed."""
    found: list[str] = []
    tuned = SimpleNamespace(stream="flights")
    monkeypatch.setattr(command, "run_tuning", lambda *_, **__: tuned)
    monkeypatch.setattr(command, "print_tuning", lambda _: None)
    monkeypatch.setattr("segments.spark.report.write_report", lambda *_: None)
    monkeypatch.setattr(command, "apply_tuning", lambda _, __, uri: found.append(uri))
    return found


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["tune", *arguments, "--apply"])
    return found.exit_code, found.stderr


@pytest.mark.parametrize("path", ["", "/", "/x"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_the_stream_is_changed_in_its_virtual_host(
    tmp_path: Path, applied: list[str], path: str, *, is_folder: bool
) -> None:
    folder = stream_folder(str(tmp_path), "x", "flights")
    Path(folder).mkdir(parents=True)
    asked = [folder] if is_folder else ["flights", "--vhost", "x", "--data", str(tmp_path)]
    assert run(*asked, "--uri", f"rabbitmq-stream://host:1{path}")[0] == 0
    assert applied == ["rabbitmq-stream://host:1/x"]


@pytest.mark.parametrize("path", ["/y", "/%2F"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_or_it_is_refused(
    tmp_path: Path, applied: list[str], path: str, *, is_folder: bool
) -> None:
    folder = stream_folder(str(tmp_path), "x", "flights")
    Path(folder).mkdir(parents=True)
    asked = [folder] if is_folder else ["flights", "--vhost", "x", "--data", str(tmp_path)]
    code, said = run(*asked, "--uri", f"rabbitmq-stream://host:1{path}")
    assert code == 2
    assert "in the virtual host" in said
    assert "expected x" in said
    assert not applied


def test_without_one_it_is_that_of_the_address(tmp_path: Path, applied: list[str]) -> None:
    Path(stream_folder(str(tmp_path), "x", "flights")).mkdir(parents=True)
    uri = "rabbitmq-stream://host:1/x"
    assert run("flights", "--data", str(tmp_path), "--uri", uri)[0] == 0
    assert applied == [uri]


def test_a_path_has_its_own(tmp_path: Path) -> None:
    code, said = run(str(tmp_path), "--vhost", "x")
    assert code == 2
    assert "--vhost needs the NAME of a stream" in said
