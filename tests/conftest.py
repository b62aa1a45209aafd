"""How the property tests draw their examples.

The same clone draws the same examples every time, so that a change is not blamed for what it has
not done; `make search` draws others, to find what nobody has thought of. What it finds becomes an
`@example` of its test.
"""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.load_profile("fixed")
