"""/api/stream/VHOST/NAME/tracking and /truncate: stored offsets, and where a stream begins."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import DONE, Operation, described
from streamd.http_api.messages import Row, done, json_answer, part, read_body
from streamd.http_api.schemas import FLAG, about
from streamd.http_api.service import Service
from streamd.operations import streams as s
from streamd.operations.reading import read_operation

_STREAM = "/api/stream/{vhost}/{name}"
_MOVES = ("offset", "timestamp", "by", "like", "undo", "force")  # fields of SetOffset
_ONE = _STREAM + "/tracking/{reference}"


class TrackingPaths:
    """What publishers and consumers have left in a stream, and its truncation."""

    TITLE = "Streams"

    def __init__(self, service: Service) -> None:
        self._service = service
        self.routes = [
            Route(_STREAM + "/tracking", self._tracking),
            Route(_ONE, self._set, methods=["PUT"]),
            Route(_ONE, self._delete, methods=["DELETE"]),
            Route(_STREAM + "/truncate", self._truncate, methods=["POST"]),
        ]

    @described(
        Operation(
            answer="Tracking",
            query={
                "type": about({"enum": ["all", "offset", "writer"], "default": "all"}, "Which."),
                "details": about({**FLAG, "default": False}, "How far behind consumers are, too."),
            },
            asks=s.GetTracking,
        )
    )
    async def _tracking(self, request: Request) -> Response:
        """The offsets that consumers have stored, and the last publishing ids of publishers.

        Source: rabbitmq/rabbitmq-server,
        deps/rabbitmq_stream_management/src/rabbit_stream_tracking_mgmt.erl.
        """
        kind = request.query_params.get("type", "all")
        tracking: s.Tracking = await self._ask(
            request, s.GetTracking, details=request.query_params.get("details") == "true"
        )
        answer = Row()
        if kind != "writer":
            answer["offsets"] = tracking.offsets
        if kind != "offset":
            answer["writers"] = tracking.writers
        if tracking.consumers is not None:
            answer["consumers"] = [
                {"reference": row["name"], **{k: v for k, v in row.items() if k != "name"}}
                for row in map(msgspec.structs.asdict, tracking.consumers)
            ]
        return json_answer(answer)

    @described(Operation(body="NewOffset", statuses=DONE, asks=s.SetOffset))
    async def _set(self, request: Request) -> Response:
        """Store an offset for a consumer."""
        body = await read_body(request)
        fields = {name: body[name] for name in _MOVES if name in body}
        await self._ask(request, s.SetOffset, name=part(request, "reference"), **fields)
        return done()

    @described(Operation(statuses=DONE, asks=s.DeleteOffset))
    async def _delete(self, request: Request) -> Response:
        """Forget the offset that a consumer has stored."""
        force = request.query_params.get("force") == "true"
        await self._ask(request, s.DeleteOffset, name=part(request, "reference"), force=force)
        return done()

    @described(Operation(body="NewBeginning", answer="Beginning", asks=s.TruncateStream))
    async def _truncate(self, request: Request) -> Response:
        """Remove the oldest messages, for good; chunks are kept as a whole."""
        body = await read_body(request)
        fields = {name: body[name] for name in ("offset", "timestamp") if name in body}
        beginning = await self._ask(request, s.TruncateStream, **fields)
        return json_answer({"first_offset": beginning.first_offset})

    async def _ask(self, request: Request, kind: type[Any], **fields: object) -> Any:  # noqa: ANN401
        """Ask for an operation on the stream in the path."""
        stream = {"vhost": part(request, "vhost"), "stream": part(request, "name")}
        return await self._service.ask(request, read_operation(kind, stream | fields))
