"""The OpenAPI document: it is valid, complete, and what the server answers is what it says."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import jsonschema
from openapi_spec_validator import OpenAPIV31SpecValidator

from segments.message import Message, Properties
from streamd.broker.declared.rows import PermissionRow
from streamd.http_api.app import routes_of
from streamd.http_api.openapi import document, methods
from streamd.http_api.schemas import SCHEMAS
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.auth import needs
from tests.support.amqp import open_peer
from tests.support.http import Http
from tests.support.pages import ROOT
from tests.support.server import FIRST, Harness, harness
from tests.support.tier import FakeTier

_SENT_RARELY = {  # to a server in trouble or with very many segments, when asked for, by POST
    ("Beginning", "first_offset"),
    ("Tracking", "consumers"),
    ("Health", "role"),
    ("Overview", "cluster"),
    ("Health", "alarms"),
    ("Health", "reason"),
    ("Health", "missing"),
    ("Stream", "reason"),
    ("TierVerification", "num_objects"),
    ("TierVerification", "num_bytes"),
    ("TierVerification", "num_faults"),
    ("TierVerification", "faults"),
    ("TierCollection", "num_orphans"),
    ("TierCollection", "num_bytes"),
    ("TierCollection", "is_removed"),
    ("TierCollection", "orphans"),
    ("TierUpload", "num_streams"),
    ("TierUpload", "num_bytes"),
    ("TierUpload", "num_outside"),
    ("TierUpload", "streams"),
    ("Stream", "segment_bytes_raised_to"),
}


ROUTES = routes_of(MagicMock())  # of whichever server
DOCUMENT = document(ROUTES)
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}


def test_it_is_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


async def test_the_server_serves_it(http: Http) -> None:
    for _ in range(2):
        assert await http.get("openapi.json") == DOCUMENT


async def test_a_prefix_is_said(tmp_path: Path) -> None:
    async with harness(tmp_path, http_path_prefix="/streamd") as server:
        answer = await Http(server)._client.get(
            "/streamd/api/openapi.json", auth=httpx.BasicAuth("guest", "guest")
        )
        assert answer.json() == {**DOCUMENT, "servers": [{"url": "/streamd"}]}


def test_each_route_is_described_and_nothing_else() -> None:
    served = {f"{method} {route.path}" for method, route in methods(ROUTES)}
    assert OPERATIONS.keys() == served
    assert all(operation["summary"] for operation in OPERATIONS.values())
    identities = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(identities)) == len(identities)


def test_what_a_path_needs_is_said() -> None:
    described = OPERATIONS
    for name, case in needs.HTTP.items():
        text = described[name].get("description", "")
        assert ("administrator" in text) >= case.is_for_administrators, name
        for need in case.needs:
            assert need[0][0].name.lower() in text, (name, need)
    for name in needs.HTTP_OF_A_HOST:
        text = described[name].get("description", "")
        is_list = any(p["name"] == "page" for p in described[name].get("parameters", ()))
        assert "access to the virtual host" in text or is_list, name


async def populated(server: Harness, http: Http) -> None:
    """A server with one of everything."""
    server.server.broker.tier = FakeTier()
    for path, body in (
        ("queues/%2F/s", {"arguments": {"x-stream-key-properties": "k"}}),
        ("exchanges/%2F/x", {"type": "headers", "arguments": {"alternate-exchange": "amq.fanout"}}),
        ("stream/super-streams/%2F/super", {"partitions": 2}),
        ("users/bob", {"password": "p", "tags": "management"}),
    ):
        assert (await http.ask("PUT", path, body)).is_success, path
    bound = await http.ask("POST", "bindings/%2F/e/x/q/s", {"arguments": {"a": 1}})
    assert bound.status_code == 201
    await server.server.directory.put_permission(PermissionRow("bob", "/", "", "", ""))
    peer = await server.peer()
    await peer.ask(c.DeclarePublisher, 1, "till", "s")
    named = Message(b"\xff", Properties(subject="t"), {"p": 1}).encode()
    await peer.store(
        [named, Message(value=1).encode(), named.replace(b"\xa1\x01t", b"\xa1\x01\xff")]
    )
    await peer.ask(c.Subscribe, 1, "s", FIRST, 10, (Pair("name", "reader"),))
    await open_peer(server)


# Requests by POST that are answered with what there is.
_POSTS = frozenset(
    {"POST /api/exchanges/{vhost}/{name}/publish", "POST /api/queues/{vhost}/{name}/get"}
)


def filled(path: str, **more: str) -> str:
    for name, value in {**needs.FILLED, **more}.items():
        path = path.replace(f"{{{name}}}", value)
    return path


async def ask(http: Http, path: str, method: str = "GET", body: Any = None) -> httpx.Response:
    if path.startswith("/api/"):
        return await http.ask(method, path.removeprefix("/api/"), body)
    return await http._client.get(path)  # needs no login


async def test_answers_are_as_described(server: Harness, http: Http) -> None:
    await populated(server, http)
    (one,) = await http.get("stream/connections")
    (binding,) = await http.get("bindings/%2F/e/x/q/s")
    sent: dict[str, set[str]] = {name: set() for name in SCHEMAS}
    for name, operation in OPERATIONS.items():
        method, path = name.split()
        if (method != "GET" and name not in _POSTS) or not path.startswith("/api/"):
            continue
        more = {"key": binding["properties_key"], "port": "5552"}
        if "super-streams" in path:
            more["name"] = "super"
        elif "connections/{" in path:
            more["name"] = one["name"].replace(" ", "%20").replace(">", "%3E")
            more["user"] = "guest"
        elif "exchanges" in path:
            more["name"] = "x"
        elif "nodes" in path:
            more["name"] = "streamd@localhost"
        body = needs.HTTP[name].fields if method == "POST" else None
        answer = await ask(http, filled(path, **more), method, body)
        assert answer.status_code in (200, 503), (name, answer.text)
        check(operation, answer)
        note(operation, answer.json(), str(answer.status_code), sent)
        if any(parameter["name"] == "page" for parameter in operation.get("parameters", ())):
            paged = await ask(http, f"{filled(path, **more)}?page=1&page_size=2")
            check(operation, paged)
    for name, fields in sent.items():
        if not name.startswith("New") and name not in ("Error", "LeftOut"):
            described = SCHEMAS[name]["properties"].keys()
            assert described - fields == {f for n, f in _SENT_RARELY if n == name}, name


def check(operation: dict[str, Any], answer: Any) -> None:
    described = operation["responses"][str(answer.status_code)]
    schema = described["content"]["application/json"]["schema"]
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(answer.json())


def note(operation: dict[str, Any], found: Any, status: str, sent: dict[str, set[str]]) -> None:
    """Record the fields that were sent of each schema."""
    schema = operation["responses"][status]["content"]["application/json"]["schema"]
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    is_list = schema.get("type") == "array" and "items" in schema
    rows, target = (found, schema["items"]) if is_list else ([found], schema)
    if "$ref" in target:
        name = target["$ref"].rpartition("/")[2]
        for row in rows:
            sent[name] |= row.keys()
        for field, inner in SCHEMAS[name]["properties"].items():
            items = inner.get("items", {})
            if "$ref" in items:
                for row in rows:
                    for item in row.get(field, ()):
                        sent[items["$ref"].rpartition("/")[2]] |= item.keys()


async def test_another_method_is_told_all_that_the_path_takes(http: Http) -> None:
    for path, allowed in (
        ("queues/%2F/s", "DELETE, GET, HEAD, PUT"),
        ("connections/username/guest", "DELETE, GET, HEAD"),
        ("openapi.json", "GET, HEAD"),
    ):
        answer = await http.ask("PATCH", path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == allowed
        jsonschema.Draft202012Validator(SCHEMAS["Error"]).validate(answer.json())
        assert answer.json()["reason"] == f"the path takes {allowed}"


async def test_the_commands_of_the_page(http: Http) -> None:
    """What curl would send, without curl, one after the other."""
    text = (ROOT / "docs/reference/http-api.md").read_text()
    files: dict[str, bytes] = {}
    answers = []
    for command in re.findall(r"^curl (.*)$", text, re.MULTILINE):
        words = shlex.split(command)
        given = dict(itertools.pairwise(words[2:]))
        url = next(word for word in words if word.startswith("http://"))
        body = given.get("-d")
        content = files[body[1:]] if body and body[0] == "@" else body and body.encode()
        method = given.get("-X", "POST" if body else "GET")
        assert words[:2] == ["-u", "guest:guest"]
        if method == "POST":  # else curl says it is a form
            assert given["-H"] == "content-type: application/json"
        answer = await http.ask(method, url.partition("/api/")[2], content)
        assert answer.is_success, command
        answers.append(answer.text)
        if ">" in given:
            files[given[">"]] = answer.content
    assert len(answers) == 7
    (shown,) = re.findall(r"^```json\n(.*)\n```$", text, re.MULTILINE)
    assert shown == answers[1]
