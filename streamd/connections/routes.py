"""Where the messages of one connection go: exchange and routing key to streams.

Places that messages went to are remembered until anything is declared or bound.
"""

from collections.abc import Callable, Collection

from streamd.auth.users import Rights
from streamd.broker.targets import Target, targets_of
from streamd.broker.virtual_host import VirtualHost
from streamd.net.turns import Steps
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.routing import DEFAULT_EXCHANGE, NO_HEADERS, Headers

TARGETS_A_TURN = 100  # streams that a message is given to before others have a turn
ROUTED = 16  # finding them takes as long as publishing so many messages
_MAX_PLACES = 1_000  # exchange and routing key pairs that are remembered
_DEFAULT_IN_RIGHTS = Name("amq.default")  # RabbitMQ's name for the default exchange
_BYTES_A_TURN = 4 << 20  # of copies of a message


def targets_a_turn(size: int) -> int:
    """To how many streams a message of so many bytes is given before others have a turn.

    Each keeps a copy.
    """
    return max(1, min(TARGETS_A_TURN, _BYTES_A_TURN // (size or 1)))


class Routes:
    """Where one user publishes."""

    def __init__(self, host: VirtualHost, rights: Rights) -> None:
        self._host = host
        self._rights = rights
        self._places: dict[tuple[Name, str], list[Target]] = {}
        self._version = -1

    def require(self, exchange: Name) -> None:
        """Raise Refused unless the user may publish there, and clients may at all."""
        self.require_right(exchange)
        if self._host.read_only is not None:
            raise self._host.read_only.refusal()
        if exchange != DEFAULT_EXCHANGE:
            host = self._host
            try:
                row = host.topology.find(exchange)
            except Refused:
                details = f"no exchange '{exchange}' in vhost '{host.name}'"
                raise Refused(Reason.NOT_FOUND, details) from None
            if row.is_internal:
                details = f"cannot publish to internal exchange '{exchange}' in vhost '{host.name}'"
                raise Refused(Reason.ACCESS_REFUSED, details)

    def require_right(self, exchange: Name) -> None:
        """Raise Refused unless the user has the right to publish there."""
        name = exchange or _DEFAULT_IN_RIGHTS
        if not self._rights.allows(Right.WRITE, name):
            details = (
                f"write access to exchange '{name}' in vhost '{self._host.name}' refused for user "
                f"'{self._rights.user}'"
            )
            raise Refused(Reason.ACCESS_REFUSED, details)

    def known(self, exchange: Name, key: str) -> list[Target] | None:
        """Where messages with this key went since anything was declared or bound."""
        version = self._host.topology.version
        if self._version != version:
            self._places.clear()
            self._version = version
        return self._places.get((exchange, key))

    def looks_at_headers(self, exchange: Name) -> bool:
        """Whether messages go by their headers there."""
        return self._host.topology.looks_at_headers(exchange)

    def find(
        self, exchange: Name, key: str, more_keys: Collection[str], headers: Callable[[], Headers]
    ) -> Steps[list[Target]]:
        """Where a message goes.

        Raises:
            Refused: there is no such exchange, or one of the streams is not available.
        """
        host = self._host
        if more_keys or host.topology.looks_at_headers(exchange):
            asked = headers() if host.topology.looks_at_headers(exchange) else NO_HEADERS
            return (yield from targets_of(host, exchange, (key, *more_keys), asked))
        version = host.topology.version
        found = yield from targets_of(host, exchange, (key,), NO_HEADERS)
        if version == self._version == host.topology.version and len(found) <= TARGETS_A_TURN:
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            self._places[exchange, key] = found
        return found
