"""`--key-property`: which may be given, and how often."""

import pytest
from click.testing import CliRunner

from streamd.cli import main
from streamd.cli.streams import _keys
from streamd.cli.terminal import Misused


def test_it_may_be_repeated() -> None:
    assert _keys(()) == {}
    assert _keys(("a", "properties.to")) == {"stream-key-properties": "a,properties.to"}


@pytest.mark.parametrize("command", ["create", "set"])
def test_a_comma_would_make_two_of_it(command: str) -> None:
    with pytest.raises(Misused, match="without a comma"):
        _keys(("a,b",))
    found = CliRunner().invoke(main, ["stream", command, "s", "--key-property", "a,b"])
    assert found.exit_code == 2
    assert found.output == "Error: --key-property is 'a,b', expected a name without a comma\n"
