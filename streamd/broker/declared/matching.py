"""Which headers match. Plain functions.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_exchange.erl,
deps/rabbit/src/rabbit_exchange_type_direct.erl, deps/rabbit/src/rabbit_exchange_type_fanout.erl,
deps/rabbit/src/rabbit_exchange_type_headers.erl and deps/rabbit/src/rabbit_exchange_type_topic.erl.
"""

from streamd.operations.routing import Headers, Scalar

MATCH = "x-match"  # an argument of a binding: all or any, with-x to look at x- headers too


def headers_match(wanted: Headers, headers: Headers) -> bool:
    """Whether all, or any, of the wanted headers are there and equal; None asks for presence."""
    mode = wanted.get(MATCH, "all")
    with_x = isinstance(mode, str) and mode.endswith("-with-x")
    tests = [
        name in headers and (value is None or _equal(value, headers[name]))
        for name, value in wanted.items()
        if name != MATCH and (with_x or not name.startswith("x-"))
    ]
    return any(tests) if isinstance(mode, str) and mode.startswith("any") else all(tests)


def _equal(one: Scalar, other: Scalar) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)
