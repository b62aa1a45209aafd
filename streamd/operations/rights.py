"""What can be allowed: rights to names, and tags of users."""

from enum import IntEnum

from streamd.net.addresses import is_local_address
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
POLICYMAKER = "policymaker"
MANAGEMENT = "management"
DOOR = "door"  # of doors alone
TAGS = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT)  # each lets in over HTTP
LOOPBACK_ONLY = "guest"  # the user whose password everybody knows


class Right(IntEnum):
    """What can be allowed of a name."""

    CONFIGURE = 0
    WRITE = 1
    READ = 2


def may_come_from(name: Name, host: str) -> bool:
    """Whether a user may log in from an address."""
    return name != LOOPBACK_ONLY or is_local_address(host)


class TagHolder:
    """Somebody who has entered, as far as tags say what may be done.

    Attributes:
        name: of the user.
    """

    name: Name

    def has_tag(self, tag: str) -> bool:
        """Whether the user has a tag now."""
        raise NotImplementedError

    @property
    def is_administrator(self) -> bool:
        """May change everything."""
        return self.has_tag(ADMINISTRATOR)

    @property
    def sees_all(self) -> bool:
        """May look at everything."""
        return self.is_administrator or self.has_tag(MONITORING)

    @property
    def may_use_http(self) -> bool:
        """Has one of the tags that let in over HTTP, and has not ended."""
        return any(map(self.has_tag, TAGS))

    def require_administrator(self) -> None:
        """Raise Refused unless the user may change everything."""
        if not self.is_administrator:
            raise Refused(Reason.ACCESS_REFUSED, f"{self.name} is not an administrator")

    def require_all(self) -> None:
        """Raise Refused unless the user may look at everything."""
        if not self.sees_all:
            details = f"{self.name} has neither the tag {ADMINISTRATOR} nor {MONITORING}"
            raise Refused(Reason.ACCESS_REFUSED, details)
