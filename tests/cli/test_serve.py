"""What `streamd serve` does around the server itself."""

import gc
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamd.cli import serve


def test_garbage_is_not_looked_for_in_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look through them holds everybody up, and they are never garbage."""
    tracked: list[int] = []
    for module, name in ((serve, "log"), (serve.sys, "setswitchinterval")):
        monkeypatch.setattr(module, name, lambda _: None)
    monkeypatch.setattr(serve.trio, "run", lambda *_: tracked.append(len(gc.get_objects())))
    gc.unfreeze()
    before = len(gc.get_objects())
    ports = [f"--{one}-port=0" for one in ("stream", "amqp", "http", "metrics")]
    ended = CliRunner().invoke(serve.serve, [f"--data={tmp_path}", "--single-process", *ports])
    assert ended.exit_code == 0, ended.output
    assert tracked[0] < before / 10
