"""Definitions: everything that was declared, as a file to keep or to carry to another server."""

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from streamd.console.administering import BAD_REQUEST, host_names
from streamd.console.forms import Form
from streamd.console.site import NavigationItem, Site
from streamd.http_api.caller import visitor_of
from streamd.http_api.definitions import (
    Definitions,
    Taken,
    all_definitions,
    check_may_declare,
    definitions_of,
    take_definitions,
)
from streamd.http_api.messages import (
    MAX_DEFINITIONS_BYTES,
    BadRequest,
    decoded,
    large_answer,
)
from streamd.operations.names import as_sent
from streamd.operations.rights import TagHolder

_MOST_ROWS = 200
_FORM_BYTES = 64 << 10  # around the file
# Each kind as the file names it, with words for people.
_KINDS = (
    ("vhosts", "Virtual hosts"),
    ("users", "Users"),
    ("permissions", "Permissions"),
    ("queues", "Streams"),
    ("exchanges", "Exchanges"),
    ("bindings", "Bindings"),
)


class DefinitionPages:
    """Definitions."""

    def __init__(self, site: Site) -> None:
        self._site, self._service = site, site.service
        needs = TagHolder.require_administrator
        site.navigation.append(NavigationItem("Definitions", "/definitions", needs))
        self.routes = [
            site.page("/definitions", self._ask, needs),
            site.page("/definitions/download", self._download, needs),
            site.action(
                "/definitions", self._upload, needs, most=MAX_DEFINITIONS_BYTES + _FORM_BYTES
            ),
        ]

    async def _ask(self, request: Request) -> Response:
        return await self._show(request)

    async def _show(self, request: Request, problem: str = "") -> Response:
        return await self._site.show(
            request,
            "definitions.html",
            BAD_REQUEST if problem else 200,
            hosts=await host_names(self._site, request),
            problem=problem,
            most=MAX_DEFINITIONS_BYTES,
        )

    async def _download(self, request: Request) -> Response:
        chosen = as_sent(request.query_params.get("vhost", ""))
        if chosen:
            document = await definitions_of(visitor_of(request), chosen)
        else:
            document = await all_definitions(visitor_of(request))
        answer = await large_answer(document)
        day = datetime.fromtimestamp(self._service.now_ms() / 1000, UTC).date().isoformat()
        file = f"streamd-definitions-{day}.json"
        answer.headers["content-disposition"] = f'attachment; filename="{file}"'
        return answer

    async def _upload(self, request: Request, form: Form) -> Response:
        data, host = form.file("file"), form.name("vhost") or None
        if not data.strip():
            return await self._show(request, "there is no file, or it is empty")
        await check_may_declare(visitor_of(request), host)
        taken, problem = Taken(), ""
        try:
            document = decoded(data, Definitions)
        except BadRequest:
            return await self._show(request, "the file is not a JSON object, as definitions are")
        try:
            await take_definitions(visitor_of(request), document, host, taken)
        except BadRequest as error:
            problem = str(error)
        return await self._site.show(
            request,
            "definitions_taken.html",
            BAD_REQUEST if problem else 200,
            problem=problem,
            rows=[(title, taken.new[kind], taken.known[kind]) for kind, title in _KINDS],
            left_out=taken.left_out[:_MOST_ROWS],
            num_more=max(0, len(taken.left_out) - _MOST_ROWS),
        )
