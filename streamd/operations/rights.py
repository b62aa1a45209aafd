"""What can be allowed: rights to names, and tags of users."""

from enum import IntEnum

ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
POLICYMAKER = "policymaker"
MANAGEMENT = "management"
TAGS = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT)  # each lets in over HTTP


class Right(IntEnum):
    """What can be allowed of a name."""

    CONFIGURE = 0
    WRITE = 1
    READ = 2
