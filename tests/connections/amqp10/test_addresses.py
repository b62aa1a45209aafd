"""Addresses: each name comes back as it was written, and nothing else is an address."""

from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from segments.amqp10 import Char, Symbol
from streamd.connections.amqp10.addresses import (
    Destination,
    more_keys,
    read_source,
    read_target,
    read_to,
)
from streamd.operations.names import Name
from streamd.operations.routing import DEFAULT_EXCHANGE
from streamd.wire.amqp10.errors import Condition, LinkFault

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
PLAIN = "!$&'()*+,-.:;=@_~"  # RFC 3986: may stand in a part of a path as they are


def written(name: str) -> st.SearchStrategy[str]:
    """The name in one of the ways in which it may be written."""
    return st.sampled_from(["", PLAIN]).map(lambda plain: quote(name, safe=plain))


@given(st.data(), NAMES)
def test_a_queue_comes_back(data: st.DataObject, name: str) -> None:
    address = f"/queues/{data.draw(written(name))}"
    assert read_source(address) == name
    assert read_target(address) == (DEFAULT_EXCHANGE, name, name)
    assert read_to(address) == read_target(address)


@given(st.data(), NAMES, NAMES | st.just(""))
def test_an_exchange_and_its_key_come_back(data: st.DataObject, name: str, key: str) -> None:
    exchange = data.draw(written(name).filter(lambda text: text != "amq.default"))
    address = f"/exchanges/{exchange}/{data.draw(written(key))}"
    assert read_target(address) == Destination(Name(name), key)
    if not key:
        assert read_target(address.removesuffix("/")) == Destination(Name(name), "")


def test_without_an_address_each_message_has_one() -> None:
    assert read_target(None) is None
    with pytest.raises(LinkFault, match="requires 'to' address"):
        read_to(None)
    with pytest.raises(LinkFault, match=r"source address is None, expected /queues/:queue"):
        read_source(None)


# Most of these are of rabbitmq/rabbitmq-server, deps/rabbit/test/amqp_address_SUITE.erl.
BAD = (
    *("/topic/mytopic", "/amq/queue/myqueue", "myqueue", "/queue", "", "\0", "/", "//", "/queues"),
    *("/queues/", "/queue/", "/exchanges", "/exchanges/", "/exchanges//", "/exchanges//mykey"),
    *("/exchanges/amq.default", "/exchanges/amq.default/", "/exchanges/amq.default/mykey"),
    *("/exchange", "/exchange//key/mykey", "/queues/missing%encoding", "/queues/a/b", "/queues/a?"),
    *("/queues/✋", "/exchanges/missing%encoding", "/exchanges/a/b/c", "/exchanges/a/b%"),
    *("/queues/%FF", "/queues/%4", "/queues/a#", "/queues/a\n", "queues/a", "/Queues/a"),
    *(Symbol("/queues/a"), Char("/"), b"/queues/a", 5, ["/queues/a"]),
)


@pytest.mark.parametrize("address", BAD)
def test_nothing_else_is_an_address(address: object) -> None:
    for read, condition in (
        (read_target, Condition.INVALID_FIELD),
        (read_source, Condition.INVALID_FIELD),
        (read_to, Condition.PRECONDITION_FAILED),
    ):
        with pytest.raises(LinkFault) as caught:
            read(address)
        assert caught.value.condition == condition
    with pytest.raises(LinkFault, match=r"^amqp:precondition-failed: bad 'to' address string: "):
        read_to(address)


def test_an_exchange_is_no_source() -> None:
    with pytest.raises(LinkFault, match="Attach refused"):
        read_source("/exchanges/a/b")


def test_further_keys() -> None:
    assert more_keys(None) == ()
    assert more_keys(["a", "", "a"]) == ("a", "", "a")
    for bad in ("a", ["a", Symbol("b")], ["a", 5], {"a": "b"}, [["a"]]):
        with pytest.raises(LinkFault, match="x-cc") as caught:
            more_keys(bad)
        assert caught.value.condition == Condition.INVALID_FIELD
