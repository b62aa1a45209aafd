"""What a server may say in its log during a run, and why."""

import re
from collections.abc import Iterable

_LINE = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
_EXPLAINED = (
    # A user that was imported with another program's hash logs in while it is changed or deleted.
    re.compile(r"the password hash of .* stays weak"),
    # A client enters a virtual host that another one has just deleted.
    re.compile(r"login refused, user 'guest', virtual host 'v\d+': virtual host access failure"),
)


def unexplained(lines: Iterable[str]) -> list[str]:
    """Lines that say that something has gone wrong, and tracebacks."""
    found = []
    for line in lines:
        is_bad = "Traceback" in line or _LINE.search(line)
        if is_bad and not any(pattern.search(line) for pattern in _EXPLAINED):
            found.append(line.rstrip())
    return found
