"""The same few inputs every time; `make fuzz` tries others."""

import logging
from pathlib import Path

import pytest

from tests.fuzz.fuzzer import PROTOCOLS, Fuzzer, Protocol

INPUTS = 150


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_changed_conversations(
    protocol: Protocol, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    fuzzer = Fuzzer(protocol, 0, tmp_path)
    fuzzer.run(range(INPUTS))
    assert fuzzer.tried == INPUTS
