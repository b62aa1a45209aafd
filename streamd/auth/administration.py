"""Changes to users, virtual hosts and permissions, with the rules that hold for all who ask.

The stream protocol's Manage command and the HTTP API both come here.
"""

from collections.abc import Collection

from streamd.auth.users import ADMINISTRATOR, UserDirectory
from streamd.broker.broker import Broker
from streamd.broker.catalog import PermissionRow
from streamd.broker.errors import Reason, Refused

_EVERYTHING = (".*", ".*", ".*")


class Administration:
    """What administrators may change.

    Args:
        broker: the virtual hosts.
        directory: the users and their permissions.
    """

    def __init__(self, broker: Broker, directory: UserDirectory) -> None:
        self._broker = broker
        self._directory = directory

    async def remove_user(self, name: str) -> None:
        """Remove a user, unless nobody would be left to make new ones.

        Raises:
            Refused: there is none, it is the last administrator, or the catalog cannot be written.
        """
        self._check_stays_managed(name)
        await self._directory.remove_user(name)

    async def set_tags(self, name: str, tags: Collection[str]) -> None:
        """Set a user's tags, all of them.

        Raises:
            Refused: it is the last administrator and would be none, or the catalog cannot be
                written.
        """
        self.check_tags(name, tags)
        await self._directory.put_user(name, tags=tags)

    def check_tags(self, name: str, tags: Collection[str]) -> None:
        """Raise Refused when nobody could manage any more once a user has these tags."""
        if ADMINISTRATOR not in tags:
            self._check_stays_managed(name)

    def _check_stays_managed(self, name: str) -> None:
        others = {u.name for u in self._directory.users() if ADMINISTRATOR in u.tags}
        if others == {name}:
            details = f"{name} is the last administrator: make another one first"
            raise Refused(Reason.PRECONDITION_FAILED, details)

    async def add_virtual_host(self, name: str, owner: str) -> None:
        """Add a virtual host; who makes it may use it, as with RabbitMQ.

        Raises:
            Refused: the catalog cannot be written.
        """
        await self._broker.add_virtual_host(name)
        await self._directory.put_permission(PermissionRow(owner, name, *_EVERYTHING))

    async def remove_virtual_host(self, name: str) -> None:
        """Remove a virtual host with all that is in it.

        Raises:
            Refused: there is none, or the catalog cannot be written.
        """
        await self._broker.remove_virtual_host(name)
        self._directory.forget_virtual_host(name)

    async def put_permission(self, row: PermissionRow) -> None:
        """Set what a user may do in a virtual host.

        Raises:
            Refused: no such user or virtual host, a pattern is none, or the catalog cannot be
                written.
        """
        if row.virtual_host not in self._broker.virtual_hosts:
            details = f"there is no virtual host {row.virtual_host}"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        await self._directory.put_permission(row)
