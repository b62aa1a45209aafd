"""How Sphinx makes the documentation: `make docs`, warnings are errors, nothing is looked up."""

import sys
from pathlib import Path

from streamd import __version__

project = "streamd"
author = "streamd contributors"
version = release = __version__
copyright = "streamd contributors, Apache-2.0"  # noqa: A001 - Sphinx wants this name

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

extensions = [
    "generated",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
nitpicky = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"streamd {__version__}"
html_copy_source = False
exclude_patterns = ["_build"]
html_static_path = ["_static"]
html_css_files = ["streamd.css"]
