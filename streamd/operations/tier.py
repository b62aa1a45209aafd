"""What can be asked of the tier."""

from typing import Annotated

import msgspec

from streamd.operations.declaration import (
    ADMINISTRATORS,
    WATCHERS,
    Allowed,
    At,
    Enter,
    OfHost,
    OfStream,
    Operation,
)
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.tier_reports import (
    MOST_SECONDS,
    UPLOAD_SECONDS,
    Collected,
    StreamTier,
    TierStatus,
    Uploaded,
    Verification,
)


class GetTier(Operation[TierStatus], frozen=True, kw_only=True):
    """How the tier does."""

    NAME = "tier.get"
    NEEDS = WATCHERS


class ListTier(Operation[list[StreamTier]], frozen=True, kw_only=True):
    """What the tier has of each stream that is in it, by virtual host and name."""

    NAME = "tier.list"
    NEEDS = WATCHERS


class GetStreamTier(OfStream[StreamTier], frozen=True, kw_only=True):
    """What is in the tier of a stream, and what still waits."""

    NAME = "tier.stream"
    AT = At.WRITER
    NEEDS = Allowed(Right.READ)


class ShowStreamTier(OfStream[StreamTier], frozen=True, kw_only=True):
    """The same for whoever may enter the virtual host; paths and causes are for watchers."""

    NAME = "tier.show"
    AT = At.WRITER
    NEEDS = Enter()


class VerifyTier(OfStream[Verification], frozen=True, kw_only=True):
    """Read all objects of a stream, and compare them with what they should be.

    Nothing is changed. It takes as long as reading them takes.
    """

    NAME = "tier.verify"
    AT = At.WRITER
    NEEDS = ADMINISTRATORS


class CollectTier(Operation[Collected], frozen=True, kw_only=True):
    """Remove the objects that nothing names any more, as those of uploads that were cut off."""

    NAME = "tier.gc"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    dry_run: bool = False


class UploadTier(OfHost[Uploaded], frozen=True, kw_only=True):
    """Upload what is not in the tier yet of streams, and the catalog.

    The segments that grow are sealed for that. The answer comes when everything that was confirmed
    before is in the tier.

    Attributes:
        vhost: where the streams are.
        streams: their names; without any all streams of all virtual hosts.
        timeout_seconds: that it may take.
    """

    NAME = "tier.upload"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    vhost: Name = Name("")
    streams: tuple[Name, ...] = ()
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=MOST_SECONDS)] = UPLOAD_SECONDS
