"""Parts of pages that are made from the code, so that nothing of it is written down twice.

Where a page has the block

    ```{generated} settings
    ```

the Markdown of `settings.markdown()` takes its place before the page is read. Tests read the same
Markdown.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from generated import command_line, http_api, metrics, settings, stream_arguments

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PARTS: dict[str, Callable[[], str]] = {
    "command-line": command_line.markdown,
    "commands": command_line.summary,
    "http-objects": http_api.objects,
    "http-paths": http_api.paths,
    "metrics": metrics.markdown,
    "settings": settings.markdown,
    "stream-arguments": stream_arguments.markdown,
}
_PLACE = re.compile(r"^```\{generated\} ([a-z-]+)\n```$", re.MULTILINE)


def filled(page: str) -> str:
    """A page with what is generated in place."""
    return _PLACE.sub(lambda place: PARTS[place[1]](), page)


def setup(app: "Sphinx") -> dict[str, bool]:
    """See Sphinx."""

    def fill(_app: "Sphinx", _page: str, source: list[str]) -> None:
        source[0] = filled(source[0])

    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
