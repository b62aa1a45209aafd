"""Which bindings of one exchange a message follows, without looking at all of them where possible.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_exchange.erl,
deps/rabbit/src/rabbit_exchange_type_direct.erl, deps/rabbit/src/rabbit_exchange_type_fanout.erl,
deps/rabbit/src/rabbit_exchange_type_headers.erl and deps/rabbit/src/rabbit_exchange_type_topic.erl.
"""

from collections.abc import Collection, Sequence

from streamd.broker.declared.matching import headers_match
from streamd.broker.routing.topics import TopicPatterns, is_literal
from streamd.net.turns import STEP_UNITS, Steps
from streamd.operations.routing import Binding, ExchangeType, Headers


class BindingIndex:
    """The bindings of one exchange as they are at the moment.

    Args:
        exchange_type: how it routes.
        bindings: all of them, in order.

    Attributes:
        leads_to_exchanges: one of them leads to another exchange.
    """

    def __init__(self, exchange_type: str, bindings: Sequence[Binding]) -> None:
        self.leads_to_exchanges = any(binding.to_exchange for binding in bindings)
        self._bindings = bindings
        self._is_headers = exchange_type == ExchangeType.HEADERS
        self._follows_all = exchange_type == ExchangeType.FANOUT
        self._by_key: dict[str, list[int]] = {}
        self._by_pattern: dict[str, list[int]] = {}
        self._patterns: TopicPatterns | None = None  # of these, once a message has come
        if self._is_headers or self._follows_all:
            return
        is_topic = exchange_type == ExchangeType.TOPIC
        for place, binding in enumerate(bindings):
            has_pattern = is_topic and not is_literal(binding.key)
            places = self._by_pattern if has_pattern else self._by_key
            places.setdefault(binding.key, []).append(place)

    def followed(self, keys: Collection[str], headers: Headers) -> Steps[list[Binding]]:
        """Find the bindings that a message with these keys and headers follows, in order."""
        if self._follows_all:
            return list(self._bindings)
        if self._is_headers:
            return (yield from self._by_headers(headers))
        places = {place for key in keys for place in self._by_key.get(key, ())}
        if self._by_pattern:
            places |= yield from self._by_patterns(keys)
        return [self._bindings[place] for place in sorted(places)]

    def _by_headers(self, headers: Headers) -> Steps[list[Binding]]:
        found = []
        units = 0
        for binding in self._bindings:
            if headers_match(binding.arguments, headers):
                found.append(binding)
            units += 1 + len(binding.arguments)
            if units >= STEP_UNITS:
                units = 0
                yield
        return found

    def _by_patterns(self, keys: Collection[str]) -> Steps[set[int]]:
        if self._patterns is None:
            patterns = TopicPatterns()
            yield from patterns.add(self._by_pattern)
            self._patterns = patterns
        found: set[int] = set()
        for key in keys:
            for text in (yield from self._patterns.matching(key)):
                found.update(self._by_pattern[text])
        return found
