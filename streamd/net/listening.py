"""Where a server listens: all addresses that a host name stands for, at one port."""

import errno
import logging
import socket

logger = logging.getLogger(__name__)

_BACKLOG = 0xFFFF  # the system lowers it to what it allows
_ANY_6 = "::"
_TRIES = 10  # to find a port that is free at all addresses
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of a host; "::" is all addresses of this machine, of IPv4, too.

    Args:
        host: its name, or an address.
        port: 0 picks a free one, the same at all addresses.

    Raises:
        OSError: none of them can be listened on, or not at this port.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _listen(host, port)
        except OSError as error:
            if port or not left or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError  # the last try has returned or raised


def _listen(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = dict.fromkeys((family, address) for family, _, _, _, address in found)
    listening: list[socket.socket] = []
    missing: list[OSError] = []
    try:
        for family, (address, _, *rest) in places:
            if listening and not port:
                port = listening[0].getsockname()[1]
            is_only_6 = len(places) > 1 or address != _ANY_6
            try:
                listening.append(_bound(family, (address, port, *rest), is_only_6=is_only_6))
            except OSError as error:  # a name stands for IPv6 also where the system has none
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                missing.append(error)
        if not listening:
            raise missing[0]
    except OSError:
        for bound in listening:
            bound.close()
        raise
    for reason in missing:
        logger.warning("not at all addresses of %s can be listened on: %s", host, reason)
    return listening


def _bound(family: int, address: tuple[object, ...], *, is_only_6: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(is_only_6))
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
