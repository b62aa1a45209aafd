"""What is asked of the tier."""

from dataclasses import replace

from streamd.engine.engine import Call, Handlers, Parts
from streamd.net.turns import in_turns
from streamd.operations import tier as t
from streamd.operations.declaration import OfStream
from streamd.operations.errors import NoSuch
from streamd.operations.tier_reports import (
    Collected,
    StreamTier,
    TierStatus,
    Uploaded,
    Verification,
    required,
    status_of,
    store_errors_refuse,
)

HIDDEN_TROUBLE = "the storage of the stream has failed or is full"  # what is wrong has paths in it


class Tier:
    """The tier as a whole, and what it has of a stream.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._broker = parts, parts.broker
        self.handlers: Handlers = {
            t.GetTier: self._get,
            t.ListTier: self._list,
            t.GetStreamTier: self._get_stream,
            t.ShowStreamTier: self._show_stream,
            t.VerifyTier: self._verify,
            t.CollectTier: self._collect,
            t.UploadTier: self._upload,
        }

    async def _get(self, _call: Call, _request: t.GetTier) -> TierStatus:
        return await status_of(self._broker.tier)

    async def _list(self, _call: Call, _request: t.ListTier) -> list[StreamTier]:
        tier = self._broker.tier
        hosts = self._broker.virtual_hosts.values() if tier is not None else ()
        names = sorted((host.name, name) for host in hosts for name in host.names())
        found = [tier.stream(*name) if tier is not None else None async for name in in_turns(names)]
        return [row for row in found if row is not None]

    async def _get_stream(self, _call: Call, request: OfStream[StreamTier]) -> StreamTier:
        self._parts.host(request.vhost).find(request.stream)
        tier = self._broker.tier
        found = tier.stream(request.vhost, request.stream) if tier is not None else None
        if found is None:
            raise NoSuch(f"{request.stream} is not in the tier")
        return found

    async def _show_stream(self, call: Call, request: t.ShowStreamTier) -> StreamTier:
        found = await self._get_stream(call, request)
        if found.sentence and not call.caller.sees_all:
            found = replace(found, sentence=HIDDEN_TROUBLE)
        return found

    async def _verify(self, _call: Call, request: t.VerifyTier) -> Verification:
        self._parts.host(request.vhost).find(request.stream)
        with store_errors_refuse():
            return await required(self._broker.tier).verify(request.vhost, request.stream)

    async def _collect(self, _call: Call, request: t.CollectTier) -> Collected:
        with store_errors_refuse():
            return await required(self._broker.tier).collect(dry_run=request.dry_run)

    async def _upload(self, _call: Call, request: t.UploadTier) -> Uploaded:
        with store_errors_refuse():
            tier = required(self._broker.tier)
            return await tier.upload(request.vhost, request.streams, request.timeout_seconds)
