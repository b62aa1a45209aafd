"""What browsers send for pages of other sites, and what answers tell browsers."""

import base64
import itertools
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trustme
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from trio.testing import memory_stream_pair

from streamd.config import LOGIN_SECONDS, Config, ConfigError, Value, load
from streamd.http_api import known_hosts, machine_names, serving
from streamd.http_api.browsers import SECURITY_HEADERS, BrowserGuard, form_refusal, with_security
from streamd.net.tls import Certificates
from tests.connections.test_hostile_peers import http_stream
from tests.http_api.test_unread import answer, head
from tests.support.http import Named
from tests.support.server import Harness, harness

HOST = "mq.example"
DEFINITIONS = json.dumps(
    {"users": [{"name": "eve", "password": "eve", "tags": "administrator"}]}
).encode()
SECURITY = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}


class Browser:
    """Sends what pages ask it to, with the user's password; the API knows it as `HOST`."""

    def __init__(self, server: Harness, *names: str, scheme: str = "http") -> None:
        app = server.server.http_app(names or (HOST,))
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 40_000))
        self._client = httpx.AsyncClient(transport=transport, base_url=f"{scheme}://localhost")

    async def send(
        self, method: str, headers: Mapping[str, str | None], path: str = "/api/definitions"
    ) -> httpx.Response:
        sent = {name: value for name, value in headers.items() if value is not None}
        content = DEFINITIONS if method in ("POST", "PUT") else None
        login = httpx.BasicAuth("guest", "guest")
        return await self._client.request(method, path, content=content, auth=login, headers=sent)


async def users(server: Harness) -> set[str]:
    return {str(row.name) for row in server.server.directory.users()}


# -- the table

SAFE = ("GET", "HEAD", "OPTIONS")
UNSAFE = ("POST", "PUT", "DELETE", "PATCH", "UNHEARD-OF")
SITES = {
    None: True,
    "none": True,
    "same-origin": True,
    "same-site": False,
    "cross-site": False,
    "Cross-Site": False,
    "not-thought-of-yet": False,
}
ORIGINS = {
    None: True,
    f"http://{HOST}:15672": True,
    f"HTTP://{HOST.upper()}:15672": True,
    f"https://{HOST}:15672": True,  # before a proxy that takes off TLS
    f"http://{HOST}": False,
    f"http://{HOST}:15673": False,
    "http://evil.example": False,
    f"http://evil.{HOST}:15672": False,
    f"http://{HOST}.evil.example:15672": False,
    f"http://{HOST}:15672@evil.example": False,
    f"http://{HOST}:15672 http://evil.example": False,
    f"ftp://{HOST}:15672": False,
    "null": False,
    "": False,
}
TYPES = {
    None: True,
    "application/json": True,
    "Application/JSON; charset=utf-8": True,
    "text/plain": False,
    "TEXT/PLAIN;charset=UTF-8": False,
    "text/plain; application/json": False,
    "multipart/form-data; boundary=x": False,
    "application/x-www-form-urlencoded": False,
    "text/ping": False,
    "application/csp-report": False,
    "application/json, text/plain": False,
}


def expected(method: str, site: str | None, origin: str | None, kind: str | None) -> int:
    """What the guard has to say, 204 for nothing."""
    if method in SAFE:
        return 204
    if not (SITES[site] and ORIGINS[origin]):
        return 403
    return 415 if method == "POST" and not TYPES[kind] else 204


async def test_what_browsers_send() -> None:
    """All of it: methods, sites, origins, types of bodies."""

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        await (form_refusal(scope) or Response(status_code=204))(scope, receive, send)

    guard = BrowserGuard(api, known_hosts(HOST))
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}:15672") as client:
        for method, site, origin, kind in itertools.product(SAFE + UNSAFE, SITES, ORIGINS, TYPES):
            found = {"sec-fetch-site": site, "origin": origin, "content-type": kind}
            headers = {name: value for name, value in found.items() if value is not None}
            status = (await client.request(method, "/", headers=headers)).status_code
            assert status == expected(method, site, origin, kind), (method, headers)


@pytest.mark.parametrize(
    ("headers", "status", "part"),
    [
        ({"origin": "http://evil.example", "content-type": "text/plain"}, 403, "evil.example"),
        ({"origin": "http://evil.example"}, 403, "a page of 'http://evil.example', expected"),
        ({"origin": "null"}, 403, "a page of 'null'"),
        ({"sec-fetch-site": "cross-site"}, 403, "Sec-Fetch-Site is 'cross-site'"),
        ({"content-type": "text/plain"}, 415, "'text/plain', expected application/json"),
        ({"host": "evil.example"}, 403, "--http-allowed-host"),
        ({"origin": "http://evil.example", "host": "evil.example"}, 403, "'evil.example'"),
    ],
)
async def test_a_page_makes_no_administrator(
    server: Harness, headers: dict[str, str], status: int, part: str
) -> None:
    browser = Browser(server)
    refused = await browser.send("POST", headers)
    assert refused.status_code == status
    assert set(refused.json()) == {"error", "reason"}
    assert part in refused.json()["reason"]
    assert refused.headers.items() >= SECURITY.items()
    assert await users(server) == {"guest"}
    own = {"origin": "http://localhost", "content-type": "application/json"}
    assert (await browser.send("POST", own)).status_code == 204
    assert await users(server) == {"guest", "eve"}


async def test_it_is_refused_before_anybody_asks_for_a_password(server: Harness) -> None:
    app = server.server.http_app()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        headers = {"origin": "http://evil.example"}
        assert (await client.post("/api/definitions", headers=headers)).status_code == 403
        assert (await client.get("/", headers={"host": "evil.example"})).status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost:15672", "https://localhost:15672"])
async def test_inside_tls_a_page_without_it_is_another_site(server: Harness, origin: str) -> None:
    headers = {"origin": origin, "host": "localhost:15672"}
    found = await Browser(server, scheme="https").send("POST", headers)
    assert found.status_code == (204 if origin.startswith("https") else 403)


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("https://localhost", "localhost", 204),
        ("https://localhost", "localhost:443", 204),
        ("http://localhost", "localhost:80", 204),
        ("http://localhost", "localhost:443", 403),
        ("http://[::1]:15672", "[0:0::1]:15672", 204),
        ("http://127.0.0.1:15672", "127.0.0.1:15672", 204),
        ("http://127.0.0.1:15672", "localhost:15672", 403),
    ],
)
async def test_an_origin_is_compared_with_its_port(
    server: Harness, origin: str, host: str, status: int
) -> None:
    found = await Browser(server).send("POST", {"origin": origin, "host": host})
    assert found.status_code == status


# -- names of this server

KNOWN = [
    "localhost",
    "LOCALHOST:15672",
    "localhost.",
    "127.0.0.1",
    "192.0.2.7:80",
    "[::1]:1",
    "[::1]",
]
UNKNOWN = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "[evil.example]",
    "localhost:x",
    "localhost@evil.example",
    "localhost, evil.example",
    "",
]


@pytest.mark.parametrize("host", [*KNOWN, HOST, f"{HOST.upper()}:80", *UNKNOWN])
async def test_names_of_this_server_and_of_others(server: Harness, host: str) -> None:
    found = await Browser(server).send("GET", {"host": host})
    known = (403, "forbidden") if host in UNKNOWN else (200, None)
    assert (found.status_code, found.json().get("error")) == known


def test_names_from_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text('http_allowed_host = ["a", "b.example"]')
    assert load(file, {}).http_allowed_host == ("a", "b.example")
    environment = {"STREAMD_HTTP_ALLOWED_HOST": " c.example,d , *"}
    assert load(file, environment).http_allowed_host == ("c.example", "d", "*")
    assert load(file, environment, http_allowed_host=()).http_allowed_host[0] == "c.example"
    assert load(file, environment, http_allowed_host=("e",)).http_allowed_host == ("e",)
    for wrong in ('"a"', "[1]", "7"):
        file.write_text(f"http_allowed_host = {wrong}")
        with pytest.raises(ConfigError, match="expected a list of strings"):
            load(file, {})


@pytest.mark.parametrize(
    ("setting", "value", "expected_"),
    [
        ("http_tls_port", 0, "http_tls_port needs tls_certificate"),
        ("http_path_prefix", "streamd", "'streamd', expected a path"),
        ("http_path_prefix", "/streamd/", "'/streamd/', expected a path"),
        ("http_path_prefix", "/a?b", "'/a.b', expected a path"),
        ("http_allowed_host", ("a", "mq:80"), "'mq:80', expected a name"),
        ("http_allowed_host", ("http://mq",), "'http://mq', expected a name"),
        ("http_allowed_host", ("*.example",), r"'\*.example', expected a name"),
        ("http_allowed_host", ("",), "'', expected a name"),
    ],
)
def test_settings_that_cannot_be_used(setting: str, value: Value, expected_: str) -> None:
    with pytest.raises(ConfigError, match=expected_):
        load(None, {}, **{setting: value})


async def test_names_from_the_settings(tmp_path: Path) -> None:
    settings = {"host": "here.example", "advertised_host": "there.example"}
    async with harness(tmp_path / "a", **settings, http_allowed_host=("A.example", "b")) as server:
        for name in ("here.example", "there.example", "a.example", "b:80"):
            assert (await Browser(server).send("GET", {"host": name})).status_code == 200
        assert (await Browser(server).send("GET", {"host": "c"})).status_code == 403
    async with harness(tmp_path / "b", http_allowed_host=("*",)) as server:
        browser = Browser(server)
        for name in ("evil.example", "@"):
            assert (await browser.send("GET", {"host": name})).status_code == 200
        headers = {"host": "x", "origin": "http://y"}
        assert (await browser.send("POST", headers)).status_code == 403


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_no_host_at_all(server: Harness, version: str) -> None:
    stream = http_stream(server)
    login = base64.b64encode(b"guest:guest").decode()
    request = f"GET /api/whoami HTTP/{version}\r\nauthorization: Basic {login}\r\n\r\n"
    await stream.send_all(request.encode())
    assert (await answer(stream)).status_code == (200 if version == "1.0" else 400)


async def test_what_this_machine_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "mq.lan.example", ("192.0.2.1", 0))]

    async def nothing(*_: object, **__: object) -> list[tuple[object, ...]]:
        raise socket.gaierror

    async def for_ever(*_: object, **__: object) -> list[tuple[object, ...]]:
        return await trio.sleep_forever()

    monkeypatch.setattr(socket, "gethostname", lambda: "mq.lan")
    for lookup, more in ((found, ["mq.lan.example"]), (nothing, []), (for_ever, [])):
        monkeypatch.setattr(trio.socket, "getaddrinfo", lookup)
        with trio.fail_after(5):
            assert await machine_names() == ["mq.lan", "mq", *more]


# -- what answers say


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (head("GET", "whoami"), 200),
        (head("PUT", "vhosts/v"), 201),
        (head("GET", "nowhere"), 404),
        (head("POST", "queues"), 405),
        (head("GET", "whoami", "guest:wrong"), 401),
        (head("GET", "whoami").replace(b"localhost", b"evil.example"), 403),
        (head("POST", "queues", size=1 << 30), 405),
        (b"NO HTTP AT ALL\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + bytes(b"x" * 70_000), 431),
    ],
)
async def test_every_answer_says_what_browsers_must_not_do(
    server: Harness, request_: bytes, status: int
) -> None:
    stream = http_stream(server)
    await stream.send_all(request_)
    data = b""
    while b"\r\n\r\n" not in data:
        data += bytes(await stream.receive_some(100_000))
    first, *lines = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert first.split()[1] == str(status)
    for name, value in SECURITY.items():
        assert [line for line in lines if line.startswith(name)] == [f"{name}: {value}"]


def test_what_an_answer_says_itself_is_left_alone() -> None:
    headers = [(b"Cache-Control", b"no-cache"), (b"content-length", b"0")]
    assert with_security(headers) == [*headers, *SECURITY_HEADERS[:-1]]


async def test_an_answer_to_a_fault_of_ours_says_so_too(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.http_api.overview.OverviewPaths._overview", None)
    stream = http_stream(server)
    await stream.send_all(head("GET", "overview"))
    found = await answer(stream)
    assert found.status_code == 500
    assert found.headers.items() >= SECURITY.items()


async def test_a_connection_too_many_is_told_so_with_them(server: Harness) -> None:
    ours, theirs = memory_stream_pair()
    theirs.socket = Named()  # type: ignore[attr-defined]
    server.start(serving.Server(server.server.http_app(), 0).serve, theirs)
    found = await answer(ours)
    assert found.status_code == 503
    assert found.headers.items() >= SECURITY.items()


# -- behind a proxy


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/streamd/mq/api/whoami", 200),
        ("/streamd/mq/api/whoami/", 200),
        ("/streamd/mq/api/queues/%2F", 200),
        ("/streamd/mq", 303),
        ("/streamd/mq/", 303),
        ("/streamd/mqx/api/whoami", 404),
        ("/streamd/mq%2Fapi/whoami", 404),
        ("/streamd/mq/streamd/mq/api/whoami", 303),
        ("/api/whoami", 404),
        ("/", 404),
    ],
)
async def test_paths_with_a_prefix(tmp_path: Path, path: str, status: int) -> None:
    async with harness(tmp_path, http_path_prefix="/streamd/mq") as server:
        found = await Browser(server).send("GET", {}, path)
        assert found.status_code == status
        if status != 303:  # of a page, which has a policy of its own
            assert found.headers.items() >= SECURITY.items()


async def test_nobody_is_asked_for_a_password_beside_the_prefix(tmp_path: Path) -> None:
    async with harness(tmp_path, http_path_prefix="/streamd") as server:
        transport = httpx.ASGITransport(server.server.http_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path, status in (("/api", 404), ("/streamdx", 404), ("/streamd/api", 401)):
                assert (await client.get(path)).status_code == status


# -- TLS


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


class Closing(Named):
    """A socket that ends its stream when it is closed."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        super().__init__()
        self._stream = stream

    def close(self) -> None:
        self._stream.send_stream.close()
        self._stream.receive_stream.close()


def https_stream(
    server: Harness, authority: trustme.CA, folder: Path, limit: int = 100
) -> tuple[trio.StapledStream[Any, Any], serving.Server]:
    """A connection to the port inside TLS, before its handshake."""
    file = folder / "server.pem"
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(file))
    certificates = Certificates(Config(tls_certificate=str(file)))
    ours, theirs = memory_stream_pair()
    theirs.socket = Closing(theirs)  # type: ignore[attr-defined]
    api = serving.Server(server.server.http_app(), limit)
    server.start(api.serve, theirs, certificates)
    return ours, api


def inside(stream: trio.abc.Stream, authority: trustme.CA) -> trio.SSLStream[trio.abc.Stream]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return trio.SSLStream(stream, context, server_hostname="localhost")


async def test_requests_inside_tls(server: Harness, authority: trustme.CA, tmp_path: Path) -> None:
    plain, _ = https_stream(server, authority, tmp_path)
    stream = inside(plain, authority)
    for _ in range(2):
        await stream.send_all(head("GET", "whoami"))
        assert (await answer(stream)).status_code == 200
    await stream.send_all(head("POST", "queues", size=1 << 30))
    found = await answer(stream)
    assert (found.status_code, found.headers["connection"]) == (405, "close")
    before = trio.current_time()
    assert await stream.receive_some(1) == b""  # the end is announced, at once
    assert trio.current_time() == before


async def test_a_handshake_that_does_not_come(
    server: Harness, authority: trustme.CA, tmp_path: Path
) -> None:
    plain, api = https_stream(server, authority, tmp_path)
    await plain.send_all(b"\x16\x03\x01")
    before = trio.current_time()
    assert await plain.receive_some(1) == b""
    assert trio.current_time() - before == LOGIN_SECONDS
    assert api._open == 0


async def test_handshakes_make_room_at_the_limit(
    server: Harness, authority: trustme.CA, tmp_path: Path
) -> None:
    """The oldest connection without a request ends for each that comes, a handshake as well."""
    _, api = https_stream(server, authority, tmp_path, limit=1)
    await trio.testing.wait_all_tasks_blocked()
    plain = []
    for _ in range(2):
        assert api._open == 1
        ours, theirs = memory_stream_pair()
        theirs.socket = Named()  # type: ignore[attr-defined]
        server.start(api.serve, theirs)
        plain.append(ours)
        await trio.testing.wait_all_tasks_blocked()
    assert await plain[0].receive_some(1) == b""
    await plain[1].send_all(head("GET", "whoami"))
    assert (await answer(plain[1])).status_code == 200


async def test_inside_tls_a_connection_too_many_is_closed(
    server: Harness, authority: trustme.CA, tmp_path: Path
) -> None:
    """Without an answer, which would cost a handshake."""
    plain, _ = https_stream(server, authority, tmp_path, limit=0)
    assert await plain.receive_some(1) == b""
