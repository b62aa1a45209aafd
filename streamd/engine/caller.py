"""Callers: the users that ask for operations."""

from streamd.auth.users import Account, Rights, UserDirectory
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import DOOR, MONITORING, Right, TagHolder


class Caller(TagHolder):
    """A user who has entered, and what it may do at the moment.

    Args:
        directory: the users.
        account: the user.
        needs_tag: without any tag it may do nothing, as over HTTP.

    Attributes:
        is_node: another node of the cluster asks for it, and is not asked back.
    """

    def __init__(
        self, directory: UserDirectory, account: Account, *, needs_tag: bool = False
    ) -> None:
        self.name = account.name
        self.account = account
        self.is_node = False
        self._directory = directory
        self._needs_tag = needs_tag

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the user has now."""
        row = self._directory.find_user(self.name)
        return () if row is None or self.account.ended else row.tags

    def has_tag(self, tag: str) -> bool:
        """See TagHolder."""
        return self._directory.has_tag(self.account, tag)

    def sees_host(self, virtual_host: Name) -> bool:
        """May look at what is in a virtual host."""
        return self.sees_all or self.rights(virtual_host).may_enter

    def require_host(self, virtual_host: Name) -> None:
        """Raise Refused unless the user may look at what is in a virtual host."""
        if not self.sees_host(virtual_host):
            details = f"{self.name} may not enter the virtual host {virtual_host}"
            raise Refused(Reason.ACCESS_REFUSED, details)

    def require(self, right: Right, virtual_host: Name, name: Name) -> None:
        """Raise Refused unless the user has a right to what has this name."""
        self.rights(virtual_host).require(right, name)

    def rights(self, virtual_host: Name) -> Rights:
        """What the user may do in a virtual host, here."""
        if self._needs_tag:
            return _TaggedRights(self, self._directory, virtual_host)
        return Rights(self._directory, self.account, virtual_host)


class DoorCaller(Caller):
    """A door of the server itself: it looks at everything, and changes nothing."""

    def __init__(self, directory: UserDirectory, name: str) -> None:
        super().__init__(directory, Account(Name(name)))

    def has_tag(self, tag: str) -> bool:
        """See Caller."""
        return tag in (MONITORING, DOOR)


class _TaggedRights(Rights):
    """The rights of a user that needs a tag for any of them."""

    def __init__(self, caller: Caller, directory: UserDirectory, virtual_host: Name) -> None:
        super().__init__(directory, caller.account, virtual_host)
        self._caller = caller

    def allows(self, right: Right, name: Name) -> bool:
        """See Rights."""
        return self._caller.may_use_http and super().allows(right, name)
