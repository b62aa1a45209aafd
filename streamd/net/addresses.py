"""What addresses say about who comes from them."""

import ipaddress

_PREFIX_6 = 64  # of an IPv6 address: whoever has one has all with the same prefix


def is_local_address(host: str) -> bool:
    """Whether an address is this machine's own."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def network_of(address: str) -> str:
    """What counts as one address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _PREFIX_6), strict=False))
