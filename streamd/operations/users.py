"""Users and their permissions."""

import msgspec

from streamd.operations.declaration import (
    ADMINISTRATORS,
    Created,
    Operation,
    Tagged,
)
from streamd.operations.names import Name
from streamd.operations.rights import ADMINISTRATOR


class User(msgspec.Struct, frozen=True):
    """A user.

    Attributes:
        name: of the user.
        tags: each gives access to something, sorted.
        password_hash: as it is kept, with its algorithm; empty: no password is accepted.
        hosts: virtual hosts that it may enter.
        connections: open now.
    """

    name: Name
    tags: tuple[str, ...]
    password_hash: str
    hosts: int
    connections: int

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.tags}, <secret>)"


class ListUsers(Operation[list[User]], frozen=True, kw_only=True):
    """Users, by name."""

    NAME = "user.list"
    NEEDS = ADMINISTRATORS


class ListOwnTags(Operation[tuple[str, ...]], frozen=True, kw_only=True):
    """The tags that one has oneself."""

    NAME = "user.tags"


class GetUser(Operation[User], frozen=True, kw_only=True):
    """A user."""

    NAME = "user.get"
    NEEDS = ADMINISTRATORS

    name: Name


class PutUser(Operation[Created], frozen=True, kw_only=True):
    """Add a user, or change one; what is not given stays, and is empty in a new user.

    What was begun with the password before ends.

    Attributes:
        name: of the user.
        password: the new one; with an empty one nobody can log in.
        password_hash: instead of a password, as `streamd.operations.passwords.read_hash` gives it.
        tags: the new ones, all of them.
        is_new: True when there must be no such user yet, False when there must be one.
        was: the tags that it must have now; else somebody has changed them meanwhile.
    """

    NAME = "user.put"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    name: Name
    password: bytes | None = None
    password_hash: str | None = None
    tags: tuple[str, ...] | None = None
    is_new: bool | None = None
    was: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"PutUser({self.name!r}, <secret>)"


class DeleteUser(Operation[None], frozen=True, kw_only=True):
    """Delete a user, except the last administrator; its connections are closed."""

    NAME = "user.delete"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    name: Name


class Permission(msgspec.Struct, frozen=True):
    """What a user may do in a virtual host: patterns for names, see `streamd.patterns`."""

    user: Name
    vhost: Name
    configure: str = ""
    write: str = ""
    read: str = ""

    @property
    def patterns(self) -> tuple[str, str, str]:
        """In the order of `Right`."""
        return self.configure, self.write, self.read


class ListPermissions(Operation[list[Permission]], frozen=True, kw_only=True):
    """Permissions, by user and virtual host: all, of a user, in a virtual host, or of both."""

    NAME = "permission.list"
    NEEDS = Tagged((ADMINISTRATOR,), unless="user")

    user: Name | None = None
    vhost: Name | None = None


class PutPermission(Operation[Created], frozen=True, kw_only=True):
    """Set what a user may do in a virtual host.

    Attributes:
        user, vhost: who, and where.
        configure, write, read: regular expressions, searched for in names; "" matches none.
        was: the patterns that must be set now, empty for no permission at all; else somebody has
            changed them meanwhile.
    """

    NAME = "permission.set"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    user: Name
    vhost: Name
    configure: str = ""
    write: str = ""
    read: str = ""
    was: tuple[str, ...] | None = None


class ClearPermission(Operation[None], frozen=True, kw_only=True):
    """Take away what a user may do in a virtual host, which is something.

    See `PutPermission` for `was`.
    """

    NAME = "permission.clear"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    user: Name
    vhost: Name
    was: tuple[str, ...] | None = None


class Trial(msgspec.Struct, frozen=True):
    """What a user may do with a name: whether it may enter the virtual host, and its rights."""

    may_enter: bool
    allowed: tuple[str, ...]
    refused: tuple[str, ...]


class TryPermission(Operation[Trial], frozen=True, kw_only=True):
    """Say what a user may do with a name in a virtual host."""

    NAME = "permission.try"
    NEEDS = Tagged((ADMINISTRATOR,), unless="user")

    user: Name
    vhost: Name
    name: Name
