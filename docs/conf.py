"""How Sphinx makes the documentation: `make docs`, warnings are errors, nothing is looked up."""

from streamd import __version__

project = "streamd"
author = "streamd contributors"
version = release = __version__
copyright = "streamd contributors, Apache-2.0"  # noqa: A001 - Sphinx wants this name

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
nitpicky = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"streamd {__version__}"
html_copy_source = False
exclude_patterns = ["_build"]
