"""Styles, scripts and the icon, as files that browsers keep: their addresses change with them.

Files of others are in `static/vendor`, as they were published, with their version in their names;
`manifest.json` says where they come from, and what they have to be byte by byte.
"""

import functools
import gzip
import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.messages import NotFound

FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGITS = 12  # of the hash in an address
_A_YEAR = "public, max-age=31536000, immutable"
_WORTH_PACKING = 1_000  # bytes


class _Asset:
    def __init__(self, data: bytes, media_type: str) -> None:
        self.data = data
        self.media_type = media_type

    @functools.cached_property
    def packed(self) -> bytes | None:
        """The same with gzip, where that is worth it."""
        return gzip.compress(self.data, mtime=0) if len(self.data) > _WORTH_PACKING else None


class Assets:
    """The files.

    Args:
        prefix: begins every path; may be empty.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._addresses: dict[str, str] = {}
        self._assets: dict[str, _Asset] = {}
        for file in sorted(FOLDER.rglob("*")):
            if file.suffix in _TYPES:
                self._add(file)
        self.routes = [
            Route("/static/{name}", self._one),
            Route("/favicon.ico", self._icon),
        ]

    def _add(self, file: Path) -> None:
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()[:_DIGITS]
        served = f"{file.stem}-{digest}{file.suffix}"
        self._addresses[file.name] = served
        self._assets[served] = _Asset(data, _TYPES[file.suffix])

    def address(self, name: str) -> str:
        """Where a file is served.

        Raises:
            KeyError: there is no such file.
        """
        return f"{self._prefix}/static/{self._addresses[name]}"

    async def _one(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"], _A_YEAR)

    async def _icon(self, request: Request) -> Response:
        """For browsers that show something which is no page, and names no icon."""
        return self._answer(request, self._addresses["icon.svg"], "public, max-age=3600")

    def _answer(self, request: Request, name: str, caching: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            raise NotFound
        headers = {"cache-control": caching, "vary": "accept-encoding"}
        may_be_packed = "gzip" in request.headers.get("accept-encoding", "")
        data = (asset.packed if may_be_packed else None) or asset.data
        if data is not asset.data:
            headers["content-encoding"] = "gzip"
        return Response(data, headers=headers, media_type=asset.media_type)
