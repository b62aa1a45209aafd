"""/api/stream/VHOST/NAME/tracking and /truncate: stored offsets, and where a stream begins."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segments import OffsetSpec, at_offset, at_time
from segments.segment import MAX_OFFSET
from streamd.auth.users import Right
from streamd.broker.broker import Broker
from streamd.broker.catalog.writer import Check
from streamd.broker.declared.names import Name
from streamd.broker.streams.stored_offsets import stored_offsets
from streamd.broker.streams.stream import Stream
from streamd.http_api.caller import caller_of
from streamd.http_api.description import DONE, ENTER, Operation, described
from streamd.http_api.messages import BadRequest, NotFound, Row, done, json_answer, part, read_body
from streamd.http_api.queues import host_of
from streamd.http_api.schemas import FLAG, about
from streamd.http_api.service import Service

_STREAM = "/api/stream/{vhost}/{name}"
_ONE = _STREAM + "/tracking/{reference}"


class TrackingPaths:
    """What publishers and consumers have left in a stream, and its truncation.

    Attributes:
        routes: for the paths of this class.
    """

    TITLE = "Streams"

    def __init__(self, service: Service) -> None:
        self._broker: Broker = service.broker
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
            needs=ENTER,
        )
    )
    async def _tracking(self, request: Request) -> Response:
        """The offsets that consumers have stored, and the last publishing ids of publishers.

        Source: rabbitmq/rabbitmq-server,
        deps/rabbitmq_stream_management/src/rabbit_stream_tracking_mgmt.erl.
        """
        kind = request.query_params.get("type", "all")
        async with self._stream(request).opened() as log:
            tracking, answer = log.tracking, Row()
            if kind != "writer":
                answer["offsets"] = {_text(k): v for k, v in tracking.offsets().items()}
            if kind != "offset":
                answer["writers"] = {_text(k): v for k, v in tracking.sequences().items()}
            if request.query_params.get("details") == "true":
                rows = await stored_offsets(self._stream(request), self._broker.now_ms)
                answer["consumers"] = [row._asdict() for row in rows]
        return json_answer(answer)

    @described(
        Operation(body="NewOffset", statuses=DONE, needs="the permission to read the stream")
    )
    async def _set(self, request: Request) -> Response:
        """Store an offset for a consumer."""
        offset = _number((await read_body(request)).get("offset"))
        stream, reference = self._stream(request), part(request, "reference")
        check = self._check(request, Right.READ)
        check()
        async with stream.opened():
            check()
            try:
                await stream.set_offset(reference, offset)
            except ValueError as error:
                raise BadRequest(str(error)) from None
        return done()

    @described(Operation(statuses=DONE, needs="the permission to read the stream"))
    async def _delete(self, request: Request) -> Response:
        """Forget the offset that a consumer has stored."""
        stream, check = self._stream(request), self._check(request, Right.READ)
        check()
        async with stream.opened():
            check()
            if not await stream.delete_offset(part(request, "reference")):
                raise NotFound
        return done()

    @described(
        Operation(
            body="NewBeginning", answer="Beginning", needs="the permission to configure the stream"
        )
    )
    async def _truncate(self, request: Request) -> Response:
        """Remove the oldest messages, for good; chunks are kept as a whole."""
        spec = _beginning(await read_body(request))
        stream, check = self._stream(request), self._check(request, Right.CONFIGURE)
        check()
        async with stream.opened():
            return json_answer({"first_offset": await stream.truncate(spec, check)})

    def _stream(self, request: Request) -> Stream:
        host, name = host_of(self._broker.virtual_hosts, request), part(request, "name")
        if not host.has_stream(name):
            raise NotFound
        return host.find(name)

    def _check(self, request: Request, right: Right) -> Check:
        name: Name = part(request, "name")
        rights = caller_of(request).rights(host_of(self._broker.virtual_hosts, request).name)
        return partial(rights.require, right, name)


def _beginning(body: Row) -> OffsetSpec:
    names = [name for name in ("offset", "timestamp") if name in body]
    if len(names) != 1:
        raise BadRequest("expected either offset, the first to keep, or timestamp, in ms")
    number = _number(body[names[0]])
    return at_offset(number) if names == ["offset"] else at_time(number)


def _number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_OFFSET:
        return value
    raise BadRequest(f"the number is {value!r}, expected a whole one from 0 to {MAX_OFFSET}")


def _text(reference: bytes) -> str:
    return reference.decode("utf-8", "backslashreplace")
