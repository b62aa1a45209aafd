"""The rows of the catalog, as the rest of the server sees them."""

from types import MappingProxyType
from typing import NamedTuple

from streamd.operations.arguments import SHARD, SHARD_LIFE, Arguments
from streamd.operations.names import Name


class StreamRow(NamedTuple):
    """One stream in the catalog.

    Attributes:
        name: unique in its virtual host.
        arguments: as declared; declaring it again requires the same ones.
        settings: arguments changed since then; an empty string is the default.
        has_files: its folder was made; until then nothing can have been stored.
    """

    virtual_host: Name
    name: Name
    arguments: Arguments
    settings: Arguments = MappingProxyType({})  # type: ignore[assignment] # immutable
    has_files: bool = False

    @property
    def shard(self) -> str:
        """The node that it was placed at; empty for none: who leads the cluster leads it."""
        return str(self.settings.get(SHARD, ""))

    @property
    def life(self) -> str:
        """Its creation id, where it was placed; else empty: its folder knows it."""
        return str(self.settings.get(SHARD_LIFE, ""))

    @property
    def effective(self) -> Arguments:
        """The arguments in force now, as users see them."""
        together = {**self.arguments, **self.settings, SHARD_LIFE: ""}
        return {name: value for name, value in together.items() if value != ""}


class UserRow(NamedTuple):
    """One user; with an empty hash no password is accepted."""

    name: Name
    password_hash: str
    tags: tuple[str, ...]

    def __repr__(self) -> str:
        return f"UserRow({self.name!r}, <secret>, {self.tags})"


class PermissionRow(NamedTuple):
    """The rights of a user in a virtual host: patterns on the names of streams."""

    user: Name
    virtual_host: Name
    configure: str
    write: str
    read: str
