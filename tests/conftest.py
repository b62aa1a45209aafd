"""How the property tests draw their examples.

The same clone draws the same examples every time, so that a change is not blamed for what it has
not done; `make search` draws others, to find what nobody has thought of. What it finds becomes an
`@example` of its test.
"""

from hypothesis import HealthCheck, settings

# How fast the machine is, is nothing that a test here may fail for.
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", slow, derandomize=True)
settings.register_profile("search", slow, derandomize=False, print_blob=True)
settings.load_profile("fixed")
