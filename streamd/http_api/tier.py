"""/api/tier: the object store that full segments are uploaded to."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.broker.declared.names import Name
from streamd.broker.steps import in_turns
from streamd.broker.tier.reports import (
    UPLOAD_SECONDS,
    check_seconds,
    plain,
    required,
    status_of,
    store_errors_refuse,
)
from streamd.broker.virtual_host import VirtualHost
from streamd.http_api.caller import caller_of
from streamd.http_api.description import (
    ADMINISTRATOR,
    ENTER,
    MONITORING,
    Operation,
    described,
)
from streamd.http_api.entitled import as_long_as
from streamd.http_api.found_messages import while_there
from streamd.http_api.messages import (
    BadRequest,
    NotFound,
    json_answer,
    large_answer,
    part,
    read_body,
)
from streamd.http_api.queues import host_of, tier_row
from streamd.http_api.service import Service

Report = TypeVar("Report")

_STREAMS_A_TURN = 100
_STREAM = "/api/tier/streams/{vhost}/{name}"


class TierPaths:
    """The tier as a whole, and what it has of a stream.

    Attributes:
        routes: for the paths of this class.
    """

    TITLE = "Tier"

    def __init__(self, service: Service) -> None:
        self._broker = service.broker
        self.routes = [
            Route("/api/tier", self._status),
            Route("/api/tier/gc", self._collect, methods=["POST"]),
            Route("/api/tier/upload", self._upload_all, methods=["POST"]),
            Route(_STREAM, self._one),
            Route(_STREAM + "/verify", self._verify, methods=["POST"]),
            Route(_STREAM + "/upload", self._upload, methods=["POST"]),
        ]

    @described(Operation(answer="Tier", needs=MONITORING))
    async def _status(self, request: Request) -> Response:
        """How the tier does."""
        caller_of(request).require_all()
        return json_answer(plain(await status_of(self._broker.tier)))

    @described(Operation(answer="StreamTier", needs=ENTER))
    async def _one(self, request: Request) -> Response:
        """What is in the tier of a stream, and what still waits; 404 for one that is not there."""
        host, name = self._stream(request)
        row = tier_row(caller_of(request), self._broker.tier, host.name, name)
        if row is None:
            raise NotFound
        return json_answer(row)

    @described(Operation(answer="TierVerification", needs=ADMINISTRATOR))
    async def _verify(self, request: Request) -> Response:
        """Read all objects of a stream, and compare them with what they should be.

        Nothing is changed. It takes as long as reading them takes.
        """
        caller_of(request).require_administrator()
        host, name = self._stream(request)
        verify = required(self._broker.tier).verify
        return await large_answer(plain(await _allowed(request, partial(verify, host.name, name))))

    @described(Operation(body="NewCollection", answer="TierCollection", needs=ADMINISTRATOR))
    async def _collect(self, request: Request) -> Response:
        """Remove the objects that nothing names any more, as those of uploads that were cut off."""
        caller_of(request).require_administrator()
        is_dry = (await read_body(request)).get("dry_run", False)
        if not isinstance(is_dry, bool):
            raise BadRequest("dry_run is neither true nor false")
        collect = required(self._broker.tier).collect
        return await large_answer(plain(await _allowed(request, partial(collect, dry_run=is_dry))))

    @described(Operation(body="NewUpload", answer="TierUpload", needs=ADMINISTRATOR))
    async def _upload_all(self, request: Request) -> Response:
        """Upload what is not in the tier yet of all streams of all virtual hosts, and the catalog.

        The segments that grow are sealed for that. The answer comes when everything that was
        confirmed before is in the tier; 503 when that takes too long, or cannot be.
        """
        caller_of(request).require_administrator()
        return await self._uploaded(request, None)

    @described(Operation(body="NewUpload", answer="TierUpload", needs=ADMINISTRATOR))
    async def _upload(self, request: Request) -> Response:
        """The same of one stream, and the catalog."""
        caller_of(request).require_administrator()
        return await self._uploaded(request, self._stream(request))

    async def _uploaded(
        self, request: Request, stream: tuple[VirtualHost, Name] | None
    ) -> Response:
        seconds = (await read_body(request)).get("timeout_seconds", UPLOAD_SECONDS)
        if not isinstance(seconds, int) or isinstance(seconds, bool):
            raise BadRequest("timeout_seconds is not a whole number")
        check_seconds(seconds)
        tier = required(self._broker.tier)
        host, names = ("", ()) if stream is None else (stream[0].name, (stream[1],))

        async def answer() -> Response:
            report = await _allowed(request, partial(tier.upload, Name(host), names, seconds))
            rows = [plain(one) async for one in in_turns(report.streams, _STREAMS_A_TURN)]
            return await large_answer({**plain(replace(report, streams=())), "streams": rows})

        return await while_there(request, answer)

    def _stream(self, request: Request) -> tuple[VirtualHost, Name]:
        host, name = host_of(self._broker.virtual_hosts, request), part(request, "name")
        if not host.has_stream(name):
            raise NotFound
        return host, name


async def _allowed(request: Request, work: Callable[[], Awaitable[Report]]) -> Report:
    """What an administrator asks of the tier, as long as its caller is one: it may take long."""
    caller = caller_of(request)
    check = caller.require_administrator
    with store_errors_refuse(), as_long_as(check, caller.account, request.scope):
        return await work()
