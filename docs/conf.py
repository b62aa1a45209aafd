"""How Sphinx makes the documentation: `make docs`, warnings are errors, nothing is looked up."""

import re
from typing import TYPE_CHECKING

from streamd.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "streamd"
author = "streamd contributors"
version = release = __version__
copyright = "streamd contributors, Apache-2.0"  # noqa: A001 - Sphinx wants this name

extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"streamd {__version__}"
html_copy_source = False
exclude_patterns = ["_build"]
html_static_path = ["_static"]
html_css_files = ["streamd.css"]


def _tables_of_contents(index: str) -> str:
    """The sections of the first page, which are lists of links, as Sphinx wants to have them."""
    sections = re.findall(r"^## (.*)\n\n((?:\* .*\n)+)", index, re.MULTILINE)
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"
        for title, links in sections
        for pages in ["\n".join(re.findall(r"\]\((.*?)\.md\)", links))]
    )


def setup(app: "Sphinx") -> None:
    """See Sphinx."""

    def add(_app: "Sphinx", page: str, source: list[str]) -> None:
        if page == "index":
            source[0] += _tables_of_contents(source[0])

    app.connect("source-read", add)
