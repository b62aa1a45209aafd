"""An address and the virtual host that something is done in."""

import pytest

from clients.uri import in_virtual_host, parse_uri

BEGINNING = "rabbitmq-stream://ada:secret@host:5551"


@pytest.mark.parametrize("path", ["", "/", "/a%2Fb"])
def test_an_address_that_names_none_or_the_same_gets_it(path: str) -> None:
    found = parse_uri(in_virtual_host(BEGINNING + path, "a/b"))
    assert found == parse_uri(f"{BEGINNING}/a%2Fb")


@pytest.mark.parametrize("path", ["/a", "/%2F"])
def test_an_address_in_another_is_refused_without_its_password(path: str) -> None:
    with pytest.raises(ValueError, match=r"in the virtual host .*, expected a/b") as e:
        in_virtual_host(BEGINNING + path, "a/b")
    assert "secret" not in str(e.value)
