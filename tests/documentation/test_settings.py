"""reference/settings has every setting, and settings rank as it says."""

import re
from pathlib import Path

from streamd.config import describe, load
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "reference/settings.md").read_text()


def test_each_setting_is_there_once_with_its_names() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == [
        setting.name for setting in describe()
    ]
    for setting in describe():
        hyphens = setting.name.replace("_", "-")
        assert f"`--{hyphens}` · `STREAMD_{setting.name.upper()}`" in PAGE


def test_the_example_ends_on_the_port_that_the_page_says(tmp_path: Path) -> None:
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "streamd.toml"
    file.write_text(toml)
    environment = {"STREAMD_STREAM_PORT": "6000", "STREAMD_NOTHING": "1"}
    assert load(file, {}).stream_port == 5552
    assert load(file, environment).stream_port == 6000
    config = load(file, environment, stream_port=7000)
    assert config.stream_port == 7000
    assert config.http_port is None
    assert config.http_allowed_host == ("mq.example", "mq")
