"""How pages and files are served: what browsers are told, what is vendored, forms of any kind."""

import gzip
import hashlib
import json
import re

import pytest

from streamd.console.assets import FOLDER
from streamd.console.forms import MAX_FORM_BYTES
from tests.support.console import Visitor, visitor
from tests.support.server import Harness

VENDOR = FOLDER / "vendor"
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}


# -- headers


async def test_pages_are_strict_and_not_kept(server: Harness, browser: Visitor) -> None:
    stranger = visitor(server)
    answers = [await browser.get(path) for path in ("/", "/streams", "/missing", "/streams/%2F/x")]
    answers += [await stranger.get(path) for path in ("/", "/login")]
    answers.append(await browser.client.post("/create-stream", data={"name": "x"}))
    answers.append(await browser.client.put("/streams"))
    assert [a.status_code for a in answers] == [200, 200, 404, 404, 303, 200, 400, 405]
    for answer in answers:
        said = answer.headers["content-security-policy"]
        assert dict(part.strip().split(" ", 1) for part in said.split(";")) == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert "www-authenticate" not in answer.headers
        names = [name for name, _ in answer.headers.raw]
        assert len(names) == len(set(names))


async def test_the_api_is_as_strict_as_it_was(server: Harness) -> None:
    answer = await visitor(server).get("/api/overview")
    assert answer.status_code == 401
    assert answer.headers["content-security-policy"] == (
        "default-src 'none'; frame-ancestors 'none'"
    )
    assert answer.headers["www-authenticate"].startswith("Basic")


async def test_a_cookie_is_nothing_to_the_api(browser: Visitor) -> None:
    assert await browser.code("/") == 200
    for path in ("/api/overview", "/api/users"):
        assert await browser.code(path) == 401


async def test_forms_are_for_pages_alone(browser: Visitor) -> None:
    token = await browser.token()
    answer = await browser.client.post(
        "/api/definitions", data={"csrf": token}, auth=("guest", "guest")
    )
    assert answer.status_code == 415


# -- files


def test_what_is_vendored_is_as_it_was_published() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    files = {file.name for file in VENDOR.iterdir()} - {"manifest.json", "LICENSES.txt"}
    assert files == set(manifest)
    licences = (VENDOR / "LICENSES.txt").read_text()
    for name, said in manifest.items():
        assert hashlib.sha384((VENDOR / name).read_bytes()).hexdigest() == said["sha384"]
        assert said["version"] in name
        assert f"{said['version']}" in licences
        assert said["licence"] in licences


async def test_files_are_kept_by_their_contents(server: Harness) -> None:
    browser = visitor(server)  # without a login
    page = await browser.page("/login")
    links = [e.get("href") or e.get("src") for e in page.head(["link", "script"])]
    assert {link.rsplit(".", 1)[1] for link in links} == {"css", "js", "svg"}
    for link in links:
        packed = await browser.get(link, **{"accept-encoding": "gzip"})
        plain = await browser.get(link, **{"accept-encoding": "identity"})
        for answer in (packed, plain):
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["vary"] == "accept-encoding"
        assert packed.content == plain.content
        digest = re.search(r"-([0-9a-f]{12})\.", link)
        assert digest is not None
        assert hashlib.sha256(plain.content).hexdigest().startswith(digest[1])
    assert (await browser.get("/favicon.ico")).headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize(
    "name", ["console.css", "../app.py", "%2e%2e/app.py", "..%2Fapp.py", "manifest.json", ""]
)
async def test_nothing_else_is_served(server: Harness, name: str) -> None:
    assert (await visitor(server).get(f"/static/{name}")).status_code in (303, 404)


async def test_the_first_page_is_small(browser: Visitor) -> None:
    answer = await browser.get("/")
    files = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', answer.text))
    sizes = [len(gzip.compress((await browser.get(file)).content)) for file in files]
    assert len(files) >= 6
    assert len(answer.content) + sum(sizes) < 70_000
    assert len(answer.content) + sum([len((await browser.get(f)).content) for f in files]) < 150_000


def test_templates_have_no_styles_and_scripts_of_their_own() -> None:
    """The policy forbids them; a browser would only say so when the page is looked at."""
    for file in sorted((FOLDER.parent / "templates").glob("*.html")):
        text = file.read_text()
        assert not re.search(r"\sstyle=|\son\w+=|hx-on|js:|javascript:|\|\s*safe", text), file.name
        for tag in re.findall(r"<script[^>]*>", text):
            assert 'src="{{ static(' in tag or 'type="application/json"' in tag, (file.name, tag)


# -- forms


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"%FF=1", "application/x-www-form-urlencoded"),
        (b"a=%FF", "application/x-www-form-urlencoded"),
        ("ö=1".encode(), "application/x-www-form-urlencoded"),
        (b"a=1&" * 1_000, "application/x-www-form-urlencoded"),
        (b"x" * (MAX_FORM_BYTES + 1), "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"x", "text/plain"),
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=y"),
        (b"", ""),
    ],
)
async def test_what_is_no_form(browser: Visitor, body: bytes, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    for path in ("/create-stream", "/login"):
        answer = await browser.client.post(path, content=body, headers=headers)
        assert answer.status_code == 400, (path, answer.status_code)
        assert "problem" in answer.text
    assert await browser.code("/") == 200


async def test_a_form_may_come_in_parts(server: Harness, browser: Visitor) -> None:
    fields = {"csrf": (None, await browser.token()), "name": (None, "s"), "vhost": (None, "/")}
    answer = await browser.client.post("/create-stream", files=fields)
    assert answer.status_code == 303
    assert server.host.names() == ["s"]
