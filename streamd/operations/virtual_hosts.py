"""Virtual hosts: separate sets of streams, exchanges and permissions."""

import msgspec

from streamd.operations.declaration import ADMINISTRATORS, Created, Enter, OfHost, Operation
from streamd.operations.names import Name


class VirtualHost(msgspec.Struct, frozen=True):
    """A virtual host.

    Attributes:
        name: of the virtual host.
        streams, messages, connections: how many there are in it.
        users: who may enter; None for those who may not know it.
    """

    name: Name
    streams: int
    messages: int
    connections: int
    users: int | None


class HostDetails(VirtualHost, frozen=True):
    """A virtual host, with what is declared in it."""

    exchanges: int
    super_streams: int


class ListVirtualHosts(Operation[list[VirtualHost]], frozen=True, kw_only=True):
    """Virtual hosts that the user may look into, by name."""

    NAME = "vhost.list"


class ListHostNames(Operation[list[Name]], frozen=True, kw_only=True):
    """The names of virtual hosts that the user may look into."""

    NAME = "vhost.names"


class GetVirtualHost(OfHost[HostDetails], frozen=True, kw_only=True):
    """A virtual host."""

    NAME = "vhost.get"
    NEEDS = Enter()


class AddVirtualHost(Operation[Created], frozen=True, kw_only=True):
    """Add a virtual host, unless there is one of that name; the user may do everything in it.

    Attributes:
        name: of the virtual host.
        is_new: there must be none of that name.
    """

    NAME = "vhost.add"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    name: Name
    is_new: bool = False


class DeleteVirtualHost(Operation[None], frozen=True, kw_only=True):
    """Delete a virtual host with all its streams; connections to it are closed."""

    NAME = "vhost.delete"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    name: Name
