"""The pages of the documentation, with what is generated in place."""

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_EXTENSIONS = ROOT / "docs" / "_extensions"


def generator(name: str) -> Any:
    """A module of docs/_extensions, imported as Sphinx does."""
    if str(_EXTENSIONS) not in sys.path:
        sys.path.append(str(_EXTENSIONS))
    return importlib.import_module(name)


def page(name: str) -> str:
    """A page as Markdown, as `page("reference/settings")`."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    found: str = generator("generated").filled(text)
    return found
