"""Where a published message goes, and with which filter value: one rule for all who route."""

from collections.abc import Collection

from streamd.broker.declared.filter_contract import own_value_reader
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.net.turns import Steps
from streamd.operations.arguments import FILTER_CONTRACT, STRICT, filter_properties
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.routing import Headers

_A_STEP = 100  # streams


class Target:
    """A stream that messages go to, and its rules for filter values."""

    def __init__(self, host: VirtualHost, stream: Stream) -> None:
        arguments = host.arguments(stream.name)
        self.stream = stream
        self._properties = filter_properties(arguments)
        self._own_value = own_value_reader(arguments)
        self._is_strict = arguments.get(FILTER_CONTRACT) == STRICT

    @property
    def takes_any_value(self) -> bool:
        """The filter value is what the publisher gives, whatever that is."""
        return self._own_value is None

    def filter_value(self, given: bytes, raw: bytes) -> bytes:
        """The filter value of a message: what the publisher gives, else the property's value.

        Raises:
            Refused: the stream requires both to be the same, and they differ.
        """
        if self._own_value is None or (given and not self._is_strict):
            return given
        own = self._own_value(raw)
        if self._is_strict and given not in (b"", own):
            raise Refused(
                Reason.PRECONDITION_FAILED,
                f"the filter value is {given[:40]!r}, but stream '{self.stream.name}' requires the "
                f"value of property {self._properties[0]}, which is {own[:40]!r}",
            )
        return own


def targets_of(
    host: VirtualHost, exchange: Name, keys: Collection[str], headers: Headers
) -> Steps[list[Target]]:
    """The streams that a message goes to; names that no stream has are left out.

    Args:
        host: where it is published.
        exchange: to which.
        keys: its routing keys.
        headers: its own.

    Raises:
        Refused: there is no such exchange, or one of the streams is not available.
    """
    targets = []
    names = yield from host.topology.reach(exchange, keys, headers)
    for number, name in enumerate(names, 1):
        try:
            targets.append(Target(host, host.find(name)))
        except Refused as refused:
            if refused.reason is Reason.NOT_AVAILABLE:
                details = f"stream '{name}' is not available: {refused.details}"
                raise Refused(refused.reason, details) from refused
        if number % _A_STEP == 0:
            yield
    return targets
