"""What the tier tells of itself, for the command line, the HTTP API and metrics.

Sizes are in bytes. Sentences and URLs have nothing secret in them.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from segments.store.object_store import TierError
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

MOST_TOLD = 500  # faults, or orphans: there may be one for each object
UPLOAD_SECONDS = 300  # that an upload is waited for, unless something else is asked for
MOST_SECONDS = 7 * 86_400  # that anything else may be
Report = TypeVar("Report")


class TierState(StrEnum):
    """How the tier does."""

    OK = "ok"
    BEHIND = "behind"  # uploads do not keep up, or nothing is stored for long
    AWAY = "away"  # cannot be reached, or refuses; it is tried again
    FENCED = "fenced"  # another server has taken the tier over
    NO_COMPARE_AND_SET = "no compare-and-set"  # so nothing is uploaded
    OFF = "off"  # the server has none


class Kind(StrEnum):
    """Kinds of requests to the store, as they are priced."""

    GET = "get"
    PUT = "put"
    LIST = "list"
    DELETE = "delete"


def _none_of_any_kind() -> Mapping[str, int]:
    return MappingProxyType(dict.fromkeys(map(str, Kind), 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """The tier as a whole. Without arguments that of a server without one.

    Attributes:
        url: of the store, as in the setting `tier`.
        state: ok, behind, away, fenced, no compare-and-set; off without a tier.
        sentence: what is wrong and what to do; empty when nothing is.
        epoch: of this start of the server; it grows with each.
        writer: the identity of this server, which is in the manifests that it writes.
        num_streams: that are in the tier, or are to be.
        bytes_local: of segment files on the disk, of those streams.
        bytes_remote: of segments that the manifests name.
        bytes_waiting: of full segments that are not in the tier yet.
        oldest_waiting_seconds: since the oldest of those was full; None when none waits.
        upload_rate: bytes a second that were uploaded lately, while something was; None as long as
            nothing was.
        upload_seconds: until what waits is uploaded at that rate; None when nothing waits, or the
            rate is not known.
        cache_bytes: of what was fetched and is on the disk.
        requests: to the store since the start, by Kind, those that failed as well.
        transferred: bytes of them, by Kind: got from the store, or put into it.
        errors: requests that failed, since the start.
        looked_seconds: of a read-only server, how long ago it was known what is in the tier; None
            for one that writes, or has not looked.
        confirm_sentence: why confirms of streams wait for the store that are confirmed by it; empty
            while they do not.
        streams_unconfirmed, messages_unconfirmed, bytes_unconfirmed: that wait for the store.
        oldest_unconfirmed_seconds: since the oldest slot with some of it was made, or since nothing
            can be stored; None when nothing waits.
        slots_stored: of the write-ahead log, since the start.
        slot_seconds: that half of the last hundred slots have taken at most; None before the first.
        slowest_slot_seconds: that each of them has taken at most.
        slots_kept, slot_bytes_kept: that a start would read, as manifests may lack something of
            them; and their size.
    """

    url: str = ""
    state: str = TierState.OFF
    sentence: str = ""
    epoch: int = 0
    writer: str = ""
    num_streams: int = 0
    bytes_local: int = 0
    bytes_remote: int = 0
    bytes_waiting: int = 0
    oldest_waiting_seconds: float | None = None
    upload_rate: float | None = None
    upload_seconds: float | None = None
    cache_bytes: int = 0
    requests: Mapping[str, int] = field(default_factory=_none_of_any_kind)
    transferred: Mapping[str, int] = field(default_factory=_none_of_any_kind)
    errors: int = 0
    looked_seconds: float | None = None
    confirm_sentence: str = ""
    streams_unconfirmed: int = 0
    messages_unconfirmed: int = 0
    bytes_unconfirmed: int = 0
    oldest_unconfirmed_seconds: float | None = None
    slots_stored: int = 0
    slot_seconds: float | None = None
    slowest_slot_seconds: float | None = None
    slots_kept: int = 0
    slot_bytes_kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTier:
    """One stream and the tier.

    Attributes:
        name, vhost: which stream it is.
        bytes_local, segments_local: on the disk, the newest segment as well.
        bytes_remote, segments_remote: in the tier; what is in both counts in both.
        bytes_waiting, segments_waiting: full segments that are not in the tier yet.
        oldest_waiting_seconds: since the oldest of those was full; None when none waits.
        sentence: what is wrong and what to do; empty when nothing is.
        looked_seconds: as of the tier.
        messages_unconfirmed: that wait for the store, where it confirms the stream.
    """

    name: str
    vhost: str
    bytes_local: int
    segments_local: int
    bytes_remote: int
    segments_remote: int
    bytes_waiting: int
    segments_waiting: int
    oldest_waiting_seconds: float | None
    sentence: str
    looked_seconds: float | None = None
    messages_unconfirmed: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an object: its key in the store, and a sentence."""

    key: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A stream's objects, all of which were read.

    Attributes:
        num_objects: that were looked at.
        num_bytes: that were read.
        num_faults: all of them.
        faults: the first 500.
    """

    num_objects: int
    num_bytes: int
    num_faults: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that nothing names any more: its key in the store, and its size."""

    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Objects that nothing names any more, and that no upload is about to need.

    Attributes:
        num_orphans: all of them.
        num_bytes: of all.
        is_removed: they are gone; otherwise they were only looked for.
        orphans: the first 500.
    """

    num_orphans: int
    num_bytes: int
    is_removed: bool
    orphans: tuple[Orphan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedStream:
    """A stream of which the tier has all that was confirmed when that was asked for.

    Attributes:
        name, vhost: which stream.
        num_bytes: of segments, with their indexes, that were uploaded meanwhile.
        next_offset: behind the last message that is stored.
    """

    name: str
    vhost: str
    num_bytes: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What was done so that the tier has everything.

    Attributes:
        num_streams: that were asked for.
        num_bytes: of all of them.
        num_outside: streams that are not to be in the tier, when all were asked for.
        streams: each of them; those that were deleted meanwhile are missing.
    """

    num_streams: int
    num_bytes: int
    num_outside: int
    streams: tuple[UploadedStream, ...]


class TierReports(Protocol):
    """What the tier can be asked; anybody may, at any time, also while the store is away."""

    async def status(self) -> TierStatus:
        """How the tier does, from memory: metrics ask every few seconds."""

    def stream(self, virtual_host: Name, name: Name) -> StreamTier | None:
        """The same of a stream, from memory; None for one that is not in the tier."""

    async def verify(self, virtual_host: Name, name: Name) -> Verification:
        """Read all objects of a stream, and compare size and checksums; nothing is changed.

        Raises:
            TierError: the store cannot be asked.
            Refused: there is no such stream, or it is not in the tier.
        """

    async def collect(self, *, dry_run: bool) -> Collected:
        """Look for objects that nothing names, and remove them unless it is a dry run.

        Raises:
            TierError: the store cannot be asked; some may be removed.
            Refused: this server may not remove anything: it is fenced, or read-only.
        """

    async def upload(self, virtual_host: Name, names: Collection[Name], seconds: float) -> Uploaded:
        """Return when the tier has everything that was confirmed before this was called.

        The newest segment of each stream is sealed for that if it has to be. The catalog is stored,
        too. What is published meanwhile is not waited for. Cancelling it is of no harm.

        Args:
            virtual_host: where the named streams are.
            names: of streams; empty for all of all virtual hosts.
            seconds: that it may take.

        Raises:
            TierError: the store cannot be used.
            Refused: it took longer, or a stream cannot be uploaded; says which and why. There is
                no such stream, or it is not to be in the tier. This server may not write: it is
                fenced, or read-only.
        """


def required(tier: TierReports | None) -> TierReports:
    """The tier of a server that has one.

    Raises:
        Refused: it has none.
    """
    if tier is None:
        details = "the server has no tier; its setting tier names one, as s3://BUCKET/PREFIX"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return tier


async def status_of(tier: TierReports | None) -> TierStatus:
    """How the tier does, also where there is none."""
    return TierStatus() if tier is None else await tier.status()


@contextmanager
def store_errors_refuse() -> Iterator[None]:
    """Refuse what somebody has asked for when the store cannot be asked."""
    try:
        yield
    except TierError as error:
        raise Refused(Reason.NOT_AVAILABLE, str(error)) from error


# -- as rows of strings, for the stream protocol


def to_row(report: Any) -> dict[str, str]:  # noqa: ANN401 - any of the above
    """A report's fields as strings; None is empty, counts by kind are `requests.get` and so on.

    Fields that are lists are left out: each of their items is a row of its own.
    """
    row: dict[str, str] = {}
    for item in dataclasses.fields(report):
        value = getattr(report, item.name)
        if isinstance(value, Mapping):
            row |= {f"{item.name}.{kind}": str(count) for kind, count in value.items()}
        elif isinstance(value, bool):
            row[item.name] = str(value).lower()
        elif not isinstance(value, tuple):
            row[item.name] = "" if value is None else str(value)
    return row


def from_row(kind: type[Report], row: Mapping[str, str], **lists: Any) -> Report:  # noqa: ANN401
    """What `to_row` was given; fields that are missing, or unknown, are left to their defaults.

    Args:
        kind: of the report.
        row: as it came.
        lists: fields that are lists.

    Raises:
        ValueError, TypeError: it is none.
    """
    values: dict[str, Any] = {**lists}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        text = row.get(item.name)
        counts = {
            key.removeprefix(f"{item.name}."): int(count)
            for key, count in row.items()
            if key.startswith(f"{item.name}.")
        }
        if counts:
            values[item.name] = counts
        elif text is not None:
            values[item.name] = _READERS.get(item.type, str)(text)
    return kind(**values)


def _seconds(text: str) -> float | None:
    return float(text) if text else None


_READERS: dict[Any, Any] = {int: int, float | None: _seconds, bool: "true".__eq__, str: str}


def plain(report: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the above
    """A report for JSON."""
    return {item.name: _plain(getattr(report, item.name)) for item in dataclasses.fields(report)}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a field's
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
