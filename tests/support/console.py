"""A browser without a screen: it visits pages of the console of a server in memory."""

from typing import Any

import httpx
from bs4 import BeautifulSoup
from starlette.types import ASGIApp

from streamd.console.app import Console
from tests.support.http import add_user
from tests.support.server import Harness


class Visitor:
    """Keeps cookies, and sends forms with the token of its session, as a browser does.

    Attributes:
        client: for requests that no browser makes.
        prefix: begins all paths.
    """

    def __init__(
        self, app: ASGIApp, address: str = "127.0.0.1", prefix: str = "", scheme: str = "http"
    ) -> None:
        transport = httpx.ASGITransport(app, client=(address, 40_000))
        self.client = httpx.AsyncClient(transport=transport, base_url=f"{scheme}://localhost")
        self.prefix = prefix

    async def log_in(self, user: str = "guest", password: str = "", wanted: str = "") -> Any:
        fields = {
            "user": user,
            "password": password or (user if user == "guest" else f"{user}-secret"),
            "next": wanted,
        }
        return await self.send("/login", fields, with_token=False)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(self.prefix + path, headers=headers)

    async def page(self, path: str, status: int = 200) -> BeautifulSoup:
        """A page, as a tree."""
        answer = await self.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return BeautifulSoup(answer.text, "html.parser")

    async def text(self, path: str, status: int = 200) -> str:
        """What a page says between its top and its end, with single spaces."""
        return " ".join((await self.page(path, status)).main.get_text(" ").split())

    async def token(self) -> str:
        """What forms of this session bring."""
        return str((await self.page("/")).find("input", {"name": "csrf"})["value"])

    async def send(
        self, path: str, fields: dict[str, Any] | None = None, *, with_token: bool = True
    ) -> httpx.Response:
        """Send a form."""
        more = {"csrf": await self.token()} if with_token else {}
        headers = {"origin": str(self.client.base_url).rstrip("/")}
        return await self.client.post(
            self.prefix + path, data={**(fields or {}), **more}, headers=headers
        )

    async def code(self, path: str) -> int:
        return (await self.get(path)).status_code


def console_of(server: Harness) -> tuple[ASGIApp, Console]:
    """The application of a server, and the console in it."""
    app = server.server.http_app()
    inside: Any = app
    while not hasattr(inside, "_pages"):  # what is around it
        inside = inside._app
    assert isinstance(inside._pages, Console)
    return app, inside._pages


def visitor(server: Harness, **options: Any) -> Visitor:
    """Somebody who has not logged in."""
    return Visitor(console_of(server)[0], **options)


async def entered(
    server: Harness, user: str = "guest", *tags: str, patterns: str = ".*"
) -> Visitor:
    """Somebody who has logged in; with tags, a user who is made for it."""
    if tags:
        await add_user(server, user, *tags, patterns=patterns)
    found = visitor(server)
    await found.log_in(user)
    return found
