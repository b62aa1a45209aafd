"""How Sphinx makes the documentation: `make docs`, warnings are errors, nothing is looked up."""

import sys
from pathlib import Path

from streamd.version import __version__

project = "streamd"
author = "streamd contributors"
version = release = __version__
copyright = "streamd contributors, Apache-2.0"  # noqa: A001 - Sphinx wants this name

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

extensions = [
    "public_names",
    "generated",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [
    # Other projects: their documentation is not looked up.
    (r"py:.*", r"(collections\.abc|contextlib|datetime|pathlib|typing|uuid)\..*"),
    (r"py:.*", r"(pyspark\.sql\..*|SparkSession|DataFrame|Column)"),
    # Parts of values that programs hand on as they are, or look at without needing their types.
    (r"py:class", r"segments\.(selector\.nodes|spark\.(jobs|recommend|replay))\..*"),
    (r"py:class", r"clients\.super_stream\..*Options|streamd\.wire\.stream\.fields\..*"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
default_role = "code"  # what docstrings have in backquotes
python_use_unqualified_type_names = True
napoleon_google_docstring = True
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"streamd {__version__}"
html_copy_source = False
exclude_patterns = ["_build"]
html_static_path = ["_static"]
html_css_files = ["streamd.css"]
