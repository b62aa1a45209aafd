"""A tier that tells what a test wants."""

from collections.abc import Collection

import trio

from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.tier_reports import (
    Collected,
    Fault,
    Orphan,
    StreamTier,
    TierState,
    TierStatus,
    Uploaded,
    UploadedStream,
    Verification,
)

STATUS = TierStatus(
    url="s3://bucket/prefix",
    state=TierState.OK,
    epoch=3,
    writer="a1b2",
    num_streams=2,
    bytes_local=1_000,
    bytes_remote=2_000_000,
    bytes_waiting=300,
    oldest_waiting_seconds=4.5,
    upload_rate=150.0,
    upload_seconds=2.0,
    cache_bytes=77,
    requests={"get": 5, "put": 1, "list": 0, "delete": 2},
    transferred={"get": 6_000, "put": 7_000, "list": 0, "delete": 0},
    errors=8,
    streams_unconfirmed=1,
    messages_unconfirmed=6,
    bytes_unconfirmed=700,
    oldest_unconfirmed_seconds=0.25,
    slots_stored=1_234,
    slot_seconds=0.05,
    slowest_slot_seconds=0.4,
    slots_kept=30,
    slot_bytes_kept=4_000,
)


class FakeTier:
    """See streamd.operations.tier_reports.TierReports.

    Attributes:
        told: its status.
        sentence: what is wrong with each stream.
        faults, orphans: that are found.
        error: raised by whatever waits.
        outside: names of streams that are not in the tier.
        uploaded: streams that an upload tells of.
        seconds: that a verification, or an upload, takes.
        asked: what was asked for, with arguments.
    """

    def __init__(self, told: TierStatus = STATUS) -> None:
        self.told = told
        self.sentence = ""
        self.faults: tuple[Fault, ...] = ()
        self.orphans: tuple[Orphan, ...] = (Orphan("v1/x/0.segment", 12),)
        self.error: Exception | None = None
        self.uploaded = tuple(
            UploadedStream(name=name, vhost="/", num_bytes=size, next_offset=1_000)
            for name, size in (("s", 2_345), ("t", 0))
        )
        self.outside: set[str] = set()
        self.seconds = 0.0
        self.asked: list[tuple[object, ...]] = []

    async def status(self) -> TierStatus:
        if self.error is not None:
            raise self.error
        return self.told

    def stream(self, virtual_host: Name, name: Name) -> StreamTier | None:
        if name in self.outside:
            return None
        return StreamTier(
            name=name,
            vhost=virtual_host,
            bytes_local=1_000,
            segments_local=2,
            bytes_remote=2_000_000,
            segments_remote=12,
            bytes_waiting=300,
            segments_waiting=1,
            oldest_waiting_seconds=4.5,
            sentence=self.sentence,
        )

    async def verify(self, virtual_host: Name, name: Name) -> Verification:
        self.asked.append(("verify", virtual_host, name))
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        if name in self.outside:
            raise Refused(Reason.PRECONDITION_FAILED, f"{name} is not in the tier")
        number = len(self.faults)
        return Verification(num_objects=12, num_bytes=3_456, num_faults=number, faults=self.faults)

    async def collect(self, *, dry_run: bool) -> Collected:
        self.asked.append(("collect", dry_run))
        if self.error is not None:
            raise self.error
        size = sum(orphan.size for orphan in self.orphans)
        return Collected(
            num_orphans=len(self.orphans),
            num_bytes=size,
            is_removed=not dry_run,
            orphans=self.orphans,
        )

    async def upload(self, virtual_host: Name, names: Collection[Name], seconds: float) -> Uploaded:
        self.asked.append(("upload", virtual_host, *names, seconds))
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.asked.append(("cancelled",))
            raise
        if self.error is not None:
            raise self.error
        if "none" in names:
            raise Refused(Reason.NOT_FOUND, "none")
        for name in self.outside.intersection(names):
            details = f"{name} is not uploaded to the tier: its argument stream-tier is false"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        return Uploaded(
            num_streams=len(self.uploaded),
            num_bytes=sum(one.num_bytes for one in self.uploaded),
            num_outside=0 if names else len(self.outside),
            streams=self.uploaded,
        )
