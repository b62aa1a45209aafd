"""The API's description as an OpenAPI document, made of the routes and what is declared of each.

Source: OAI/OpenAPI-Specification, versions/3.1.1.md.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import Operation, Schema, described, operation_of
from streamd.http_api.messages import json_answer
from streamd.http_api.schemas import ANYTHING, NUMBER, SCHEMAS, TEXT, about, ref, some
from streamd.version import __version__

PATH = "/api/openapi.json"
_LOGIN = "login"
_PARTS = {  # of paths
    "vhost": "A virtual host; `%2F` is `/`",
    "name": "A name, percent-encoded",
    "stream": "The name of a stream, percent-encoded",
    "user": "The name of a user, percent-encoded",
    "port": "The number of a port",
    "source": "The name of an exchange, percent-encoded; `amq.default` is the default exchange",
    "kind": "What the destination is: `q` for a queue, `e` for an exchange",
    "destination": "The name of a stream or of an exchange, percent-encoded",
    "reference": "The name of a consumer, percent-encoded",
    "key": "The `properties_key` of a binding, or its routing key where that is enough",
}
_KINDS = ("q", "e")
_PAGES = {
    "columns": about(TEXT, "Only these fields of each row, separated by commas."),
    "page": about({**NUMBER, "minimum": 1}, "Only this page of the list, in an object about it."),
    "page_size": about({**NUMBER, "minimum": 1, "maximum": 500, "default": 100}, "Rows of a page."),
}
_NAME = about(TEXT, "With `page`: only rows whose name contains this.")
_FAILURES = {
    "400": "The request cannot be understood or carried out; the reason says why.",
    "401": "No login, a wrong one, or the user lacks a tag or a permission.",
    "403": "For another host than this server, from a page of another site, or of a reserved name.",
    "404": "There is no such thing.",
    "415": "The body is not said to be JSON.",
    "503": "Not available now: too many connections are open, or a stream cannot be used.",
    "5XX": "The server could not do it; its log has the details.",
}


class DescriptionPaths:
    """The description of the API itself."""

    TITLE = "Description"

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = [Route(PATH, self._document)]
        self._described = [*routes, *self.routes]
        self._answer: Response | None = None

    @described(Operation(answer=ANYTHING))
    async def _document(self, request: Request) -> Response:
        """This document."""
        if self._answer is None:  # made once: that takes some milliseconds
            self._answer = json_answer(document(self._described, request.scope["root_path"]))
        return self._answer


def document(routes: Iterable[Route], prefix: str = "") -> Schema:
    """The OpenAPI document of some routes, whose handlers are described.

    Args:
        routes: as they are without a prefix.
        prefix: begins every path, as "/streamd"; may be empty.
    """
    paths: dict[str, Schema] = {}
    described = list(methods(routes))
    for method, route in sorted(described, key=lambda item: item[1].path):
        paths.setdefault(route.path, {})[method.lower()] = _operation(method, route)
    titles = dict.fromkeys(_title(route) for _, route in described)
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "streamd HTTP API",
            "version": __version__,
            "summary": "The paths of RabbitMQ's management API that concern streams.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{_LOGIN: []}],
        "tags": [{"name": title} for title in titles],
        "paths": paths,
        "components": {
            "securitySchemes": {_LOGIN: {"type": "http", "scheme": "basic"}},
            "schemas": SCHEMAS,
            "responses": {
                code: _answer(meaning, ref("Error")) for code, meaning in _FAILURES.items()
            },
        },
    }


def methods(routes: Iterable[Route]) -> Iterator[tuple[str, Route]]:
    """Each method of each route; HEAD, which is as GET, left out."""
    for route in routes:
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                yield method, route


def _operation(method: str, route: Route) -> Schema:
    what = operation_of(route.endpoint)
    summary, _, rest = inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n")
    needs = f"Needs {what.needed}." if what.needed else "Needs no login." if what.is_open else ""
    description = " ".join(filter(None, [" ".join(rest.split()), needs]))
    found: Schema = {
        "operationId": "-".join(
            [method.lower(), *re.findall(r"\w+", route.path.removeprefix("/api"))]
        ),
        "tags": [_title(route)],
        "summary": summary.removesuffix("."),
    }
    if description:
        found["description"] = description
    if what.is_open:
        found["security"] = []
    parameters = [*_path_parameters(route), *_query_parameters(what)]
    if parameters:
        found["parameters"] = parameters
    if what.body:
        found["requestBody"] = {
            "required": bool(SCHEMAS[what.body].get("required")),
            "content": _json(ref(what.body)),
        }
    return found | {"responses": _answers(method, what, has_parts="{" in route.path)}


def _title(route: Route) -> str:
    """The part of the API that a route is in: its handler is a method of a class with a title."""
    owner: Any = getattr(route.endpoint, "__self__", None)
    title: str = owner.TITLE
    return title


def _path_parameters(route: Route) -> Iterator[Schema]:
    for name in re.findall(r"{(\w+)}", route.path):
        schema = {**TEXT, "enum": list(_KINDS)} if name == "kind" else {**TEXT, "minLength": 1}
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": f"{_PARTS[name]}.",
            "schema": schema,
        }


def _query_parameters(what: Operation) -> Iterator[Schema]:
    pages = _PAGES | ({"name": _NAME} if what.has_names else {}) if what.rows else {}
    for name, schema in {**pages, **what.query}.items():
        plain = {key: value for key, value in schema.items() if key != "description"}
        yield {
            "name": name,
            "in": "query",
            "description": schema["description"],
            "schema": plain,
        }


def _answers(method: str, what: Operation, *, has_parts: bool) -> Schema:
    answers: dict[str, Schema] = {}
    if what.rows:
        rows = some(what.rows)
        answers["200"] = _answer("The list, or a page of it.", {"anyOf": [rows, _page(rows)]})
    elif what.answer is not None:
        schema = ref(what.answer) if isinstance(what.answer, str) else what.answer
        answers["200"] = _answer("The answer.", schema)
    for status, meaning in what.statuses.items():
        answers[str(status)] = {"description": meaning}
    for status, name in what.failures.items():
        answers[str(status)] = _answer("It fails.", ref(name))
    left_out = set() if has_parts else {"404"}
    left_out |= set() if has_parts or what.rows or what.body else {"400"}
    left_out |= set() if method == "POST" else {"415"}
    left_out |= {"401"} if what.is_open else set()
    for code in _FAILURES:
        if code not in left_out:
            answers.setdefault(code, {"$ref": f"#/components/responses/{code}"})
    return answers


def _page(rows: Schema) -> Schema:
    numbers = ("total_count", "filtered_count", "item_count", "page", "page_size", "page_count")
    return {
        "type": "object",
        "properties": {**dict.fromkeys(numbers, NUMBER), "items": rows},
        "required": [*numbers, "items"],
        "additionalProperties": False,
    }


def _answer(meaning: str, schema: Schema) -> Schema:
    return {"description": meaning, "content": _json(schema)}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
