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
    # The store of the tier refuses now and then; what is said of it is not of a store that is away.
    re.compile(r"stream \S+ will be uploaded to the tier later: .*the connection broke off"),
    re.compile(r"the tier later: the manifest \S+ could not be written"),
    re.compile(r"(tier:|tier later:|waiting for it:) the connection broke off"),
    re.compile(r"the tier does not have the newest catalog: the connection broke off"),
    # The process that makes key tables was killed at the same segment three times.
    re.compile(r"WARNING no key index for .*: (the process has ended with -9|it was killed)"),
)
_MENDED = (
    # It says that it was killed, and that nothing is lost.
    re.compile(r"WARNING the server was not shut down cleanly"),
    re.compile(r"WARNING looked at .* none with lost messages$"),
    # What a kill leaves behind: files that were being made, and those before a truncation.
    re.compile(r"WARNING stream \S+: removed .*: the file that it was to replace is the valid one"),
    re.compile(r"WARNING stream \S+: removed .*: the log was told to begin behind it"),
    re.compile(r"WARNING stream \S+: removed .*: its segment file is missing"),
    # It was killed between deleting a stream and moving its folder.
    re.compile(r"WARNING \S+ belongs to no stream; it is now"),
)


def is_unexplained(line: str, *, is_killed: bool = False) -> bool:
    """Whether a line says that something has gone wrong that should not.

    Args:
        line: of the log.
        is_killed: the server was killed, so what it mends when it starts is no surprise.
    """
    explained = _EXPLAINED + _MENDED if is_killed else _EXPLAINED
    return bool(_BAD.search(line)) and not any(known.search(line) for known in explained)
