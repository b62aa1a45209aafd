"""HTTP/1.1 and nothing beside it, however a peer asks.

Hypercorn would change to HTTP/2, or to a web socket, when a request asks for it, before anybody
has logged in. HTTP/2 carries many requests at once on one connection, each of which can be taken
back: the wait for the answer to a wrong password would slow down nobody. And a proxy that checks
requests would not see those behind a change of protocol.
"""

import h11

from streamd.http_api.browsers import with_security

_VERSIONS = (b"1.0", b"1.1")
_LENGTHS = frozenset((b"content-length", b"transfer-encoding"))


class Http1(h11.Connection):
    """The server's end of a connection that stays HTTP/1.1.

    A wish for another protocol is ignored, as RFC 9110, 7.8, allows.

    Args:
        header_bytes: a request's head may have so many.
    """

    def __init__(self, header_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=header_bytes)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """See h11.

        Raises:
            h11.RemoteProtocolError: also for a request of another version, and for one that gives
                its length twice: a proxy may believe the other (RFC 9112, 6.1 and 11.2).
        """
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if event.http_version not in _VERSIONS:
            raise h11.RemoteProtocolError("another version", error_status_hint=505)
        names = {name for name, _ in event.headers}
        if names >= _LENGTHS:
            raise h11.RemoteProtocolError("two lengths", error_status_hint=400)
        return _without_upgrade(event) if b"upgrade" in names else event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """See h11. Answers of Hypercorn's own get the headers that the application's have."""
        if isinstance(event, h11.Response):
            event = h11.Response(
                status_code=event.status_code,
                headers=with_security(event.headers),
                reason=event.reason,
            )
        return super().send_with_data_passthrough(event)


def _without_upgrade(request: h11.Request) -> h11.Request:
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=[header for header in request.headers if header[0] != b"upgrade"],
        http_version=request.http_version,
    )
