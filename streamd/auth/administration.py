"""Changes that concern both the virtual hosts and the permissions of users.

The stream protocol's Manage command and the HTTP API both come here.
"""

from streamd.auth.users import MAX_NAME_BYTES, UserDirectory
from streamd.broker.broker import Broker
from streamd.broker.catalog.writer import Check, permitted
from streamd.broker.declared.rows import PermissionRow
from streamd.operations.names import Name, check_new

_EVERYTHING = (".*", ".*", ".*")


class Administration:
    """Virtual hosts and permissions in them."""

    def __init__(self, broker: Broker, directory: UserDirectory) -> None:
        self._broker = broker
        self._directory = directory

    async def add_virtual_host(self, name: Name, owner: Name, check: Check = permitted) -> bool:
        """Add a virtual host unless it exists; its owner gets all rights in it.

        Returns:
            Whether it is new.

        Raises:
            Refused: a bad name, the owner does not exist, or the catalog cannot be written.
        """
        async with self._broker.catalog.turn(check) as turn:
            if name in self._broker.virtual_hosts:
                return False
            check_new("a virtual host", name, MAX_NAME_BYTES)
            self._directory.check_user(owner)
            row = PermissionRow(owner, name, *_EVERYTHING)
            await self._broker.add_virtual_host(turn, name, lambda c: c.put_permission(row))
            self._directory.add_permission(row)
            return True

    async def remove_virtual_host(self, name: Name, check: Check = permitted) -> None:
        """Remove a virtual host with everything in it, and the permissions of users there.

        See CatalogWriter.turn for `check`.

        Raises:
            Refused: it does not exist, or the catalog cannot be written.
        """
        async with self._broker.catalog.turn(check) as turn:
            await self._broker.remove_virtual_host(turn, name)
            self._directory.forget_virtual_host(name)
        if self._broker.shards is not None:  # who leads its streams confirms nothing more to them
            await self._broker.shards.have_read()

    async def put_permission(self, row: PermissionRow, check: Check = permitted) -> bool:
        """Set what a user may do in a virtual host; returns whether it had no permissions there.

        See CatalogWriter.turn for `check`.

        Raises:
            Refused: no such user or virtual host, a pattern that cannot be compiled, or the
                catalog cannot be written.
        """

        def check_all() -> None:
            check()
            self._broker.check_virtual_host(row.virtual_host)

        return await self._directory.put_permission(row, check_all)
