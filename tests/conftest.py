"""How the property tests draw their examples.

The same clone draws the same examples every time, so that a change is not blamed for what it has
not done; `make search` draws others, to find what nobody has thought of. What it finds becomes an
`@example` of its test.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast the machine is, is nothing that a test here may fail for.
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", slow, derandomize=True)
settings.register_profile("search", slow, derandomize=False, print_blob=True)
settings.load_profile("fixed")

# No power fails while tests run; what is synced when, tests/support/powerless.py looks at.
os.fsync = os.fdatasync = lambda fd: (os.fstat(fd), None)[1]  # type: ignore[assignment,arg-type]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several test processes, all that use Spark in one of them: one JVM at a time."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only with xdist

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            is_spark = nodeid.startswith("tests/spark/") or nodeid.endswith("_in_spark")
            return "spark" if is_spark else nodeid

    return Scheduling(config, log)
