"""`--key-property`: which may be given, and how often."""

from segments.selector import names_in
from streamd.cli.streams import _keys


def test_it_may_be_repeated() -> None:
    assert _keys(()) == {}
    assert _keys(("a", "properties.to")) == {"stream-key-properties": "a,properties.to"}


def test_a_name_with_a_comma_stands_in_brackets() -> None:
    (text,) = _keys(("a", "[b,c]")).values()
    assert names_in(text) == ("a", "b,c")
