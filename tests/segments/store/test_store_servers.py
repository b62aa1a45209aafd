"""Where a real store is not built, its tests say how to get it, and build nothing by themselves."""

from pathlib import Path

import pytest

from tests.support import stores
from tests.support.stores import PROGRAMS, StoreServer


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STREAMD_BUILD_STORES", raising=False)


@pytest.mark.parametrize("kind", sorted(PROGRAMS))
@pytest.mark.parametrize(
    ("go", "reason"), [("/bin/go", "make stores builds it"), (None, "and needs Go")]
)
def test_one_that_is_not_there(
    kind: str, go: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "go", lambda: go)
    with pytest.raises(pytest.skip.Exception, match=f"{kind} is not there: .*{reason}$"):
        StoreServer(kind, tmp_path / "store").start()


def test_no_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "go", lambda: None)
    with pytest.raises(SystemExit, match="Go is not installed, so the object stores"):
        stores.main()


def test_a_build_is_kept_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, program = tmp_path / "log", PROGRAMS["gofakes3"]
    go = tmp_path / "go"
    go.write_text(f'#!/bin/sh\necho "$@" >> {log}\necho built > "$GOBIN/gofakes3"\n')
    go.chmod(0o700)
    monkeypatch.setattr(stores, "go", lambda: str(go))
    for _ in range(2):
        stores.build(program)
    assert program.path.read_text() == "built\n"
    assert log.read_text() == f"install {program.module}@{program.version}\n"
    assert [path.name for path in program.path.parent.iterdir()] == [program.path.name]
