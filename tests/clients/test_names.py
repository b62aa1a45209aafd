"""`from streamd import connect`: the package of the server has the names of the client library."""

import pytest

import clients
import streamd


@pytest.mark.parametrize("name", clients.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(streamd, name) is getattr(clients, name)


@pytest.mark.parametrize("name", ["Consumers", "wire_", "ANSWER_SECONDS"])
def test_others_are_not(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'streamd' has no attribute '{name}'"):
        getattr(streamd, name)
