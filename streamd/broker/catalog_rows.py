"""The rows of the catalog, as those who read and change it see them."""

from types import MappingProxyType
from typing import NamedTuple

from streamd.broker.arguments import Arguments


class StreamRow(NamedTuple):
    """One stream in the catalog.

    Attributes:
        virtual_host: where it is.
        name: of it.
        arguments: what it was declared with, and is declared with again.
        settings: what was changed since, by the same names; an empty string is the default.
    """

    virtual_host: str
    name: str
    arguments: Arguments
    settings: Arguments = MappingProxyType({})  # type: ignore[assignment] # nothing to change in it

    @property
    def effective(self) -> Arguments:
        """The arguments that hold for it now."""
        together = {**self.arguments, **self.settings}
        return {name: value for name, value in together.items() if value != ""}


class UserRow(NamedTuple):
    """One user; the hash is empty when no password lets in."""

    name: str
    password_hash: str
    tags: tuple[str, ...]

    def __repr__(self) -> str:
        return f"UserRow({self.name!r}, <secret>, {self.tags})"


class PermissionRow(NamedTuple):
    """The rights of a user in a virtual host: patterns on the names of streams."""

    user: str
    virtual_host: str
    configure: str
    write: str
    read: str
