"""/api/tier: the object store that full segments are uploaded to."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import Operation, described
from streamd.http_api.messages import Row, json_answer, large_answer, part, read_body
from streamd.http_api.service import Service
from streamd.http_api.unsent import while_there
from streamd.net.turns import in_turns
from streamd.operations import tier as t
from streamd.operations.names import Name
from streamd.operations.reading import read_operation
from streamd.operations.tier_reports import plain

_STREAM = "/api/tier/streams/{vhost}/{name}"


class TierPaths:
    """The tier as a whole, and what it has of a stream."""

    TITLE = "Tier"

    def __init__(self, service: Service) -> None:
        self._service = service
        self.routes = [
            Route("/api/tier", self._status),
            Route("/api/tier/gc", self._collect, methods=["POST"]),
            Route("/api/tier/upload", self._upload_all, methods=["POST"]),
            Route(_STREAM, self._one),
            Route(_STREAM + "/verify", self._verify, methods=["POST"]),
            Route(_STREAM + "/upload", self._upload, methods=["POST"]),
        ]

    @described(Operation(answer="Tier", asks=t.GetTier))
    async def _status(self, request: Request) -> Response:
        """How the tier does."""
        return json_answer(plain(await self._service.ask(request, t.GetTier())))

    @described(Operation(answer="StreamTier", asks=t.ShowStreamTier))
    async def _one(self, request: Request) -> Response:
        """What is in the tier of a stream, and what still waits; 404 for one that is not there."""
        asked = t.ShowStreamTier(**_stream(request))
        return json_answer(plain(await self._service.ask(request, asked)))

    @described(Operation(answer="TierVerification", asks=t.VerifyTier))
    async def _verify(self, request: Request) -> Response:
        """Read all objects of a stream, and compare them with what they should be.

        Nothing is changed. It takes as long as reading them takes.
        """
        asked = t.VerifyTier(**_stream(request))
        return await large_answer(plain(await self._service.ask(request, asked)))

    @described(Operation(body="NewCollection", answer="TierCollection", asks=t.CollectTier))
    async def _collect(self, request: Request) -> Response:
        """Remove the objects that nothing names any more, as those of uploads that were cut off."""
        asked = read_operation(t.CollectTier, await read_body(request))
        return await large_answer(plain(await self._service.ask(request, asked)))

    @described(Operation(body="NewUpload", answer="TierUpload", asks=t.UploadTier))
    async def _upload_all(self, request: Request) -> Response:
        """Upload what is not in the tier yet of all streams of all virtual hosts, and the catalog.

        The segments that grow are sealed for that. The answer comes when everything that was
        confirmed before is in the tier; 503 when that takes too long, or cannot be.
        """
        return await self._uploaded(request, {"vhost": "", "streams": []})

    @described(Operation(body="NewUpload", answer="TierUpload", asks=t.UploadTier))
    async def _upload(self, request: Request) -> Response:
        """The same of one stream, and the catalog."""
        path = _stream(request)
        return await self._uploaded(request, {"vhost": path["vhost"], "streams": [path["stream"]]})

    async def _uploaded(self, request: Request, fields: Row) -> Response:
        body = await read_body(request)
        asked = read_operation(t.UploadTier, body | fields)

        async def answer() -> Response:
            report = await self._service.ask(request, asked)
            rows = [plain(one) async for one in in_turns(report.streams)]
            return await large_answer({**plain(replace(report, streams=())), "streams": rows})

        return await while_there(request, answer)


def _stream(request: Request) -> dict[str, Name]:
    return {"vhost": part(request, "vhost"), "stream": part(request, "name")}
