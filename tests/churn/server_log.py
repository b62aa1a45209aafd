"""What a server may say in its log during a run, and why."""

import re

_BAD = re.compile(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b")
_EXPLAINED = (
    # A user that was imported with another program's hash logs in while it is changed or deleted.
    re.compile(r"the password hash of .* stays weak"),
    # Somebody asks for a filter value, and this time all messages were published without one.
    re.compile(r"a consumer asks for filter values, but no message in the .* chunks .* has one"),
    # A client enters a virtual host that another one has just deleted.
    re.compile(r"login refused, user 'guest', virtual host 'v\d+': virtual host access failure"),
)


def is_unexplained(line: str) -> bool:
    """Whether a line says that something has gone wrong that should not."""
    return bool(_BAD.search(line)) and not any(known.search(line) for known in _EXPLAINED)
