"""Runs a program under the system call filter of a unit, as far as systemd would.

python -m tests.support.seccomp UNIT PROGRAM ARGUMENT...
"""

import ctypes
import os
import re
import socket
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

ALLOW, EPERM = 0x7FFF0000, 0x00050001
EQUAL, MASKED = 4, 7  # comparisons of arguments
PROT_WRITE, PROT_EXEC = 2, 4


class Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def is_possible() -> bool:
    """Whether there are the library, and systemd's names of sets of calls."""
    return find_library("seccomp") is not None and os.access("/usr/bin/systemd-analyze", os.X_OK)


def calls_of(name: str) -> set[str]:
    """The system calls in one of systemd's sets."""
    command = ["systemd-analyze", "syscall-filter", "--no-pager", name]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in text.splitlines()[1:]]
    found = {word for word in words if word and word[0] not in "#@"}
    return found.union(*(calls_of(word) for word in words if word.startswith("@")))


def filter_of(unit: str) -> set[str]:
    """The system calls that a unit allows; a later line wins."""
    found: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        names = line.removeprefix("~").split()
        calls = set().union(*(calls_of(name) if name[0] == "@" else {name} for name in names))
        found = found - calls if line.startswith("~") else found | calls
    return found


def apply(unit: str) -> None:
    """Have this process, and what it becomes, under the filter.

    Also under RestrictAddressFamilies and MemoryDenyWriteExecute, which systemd makes of the same.
    """
    library = ctypes.CDLL(find_library("seccomp"))
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(EPERM))
    numbers = {
        name: library.seccomp_syscall_resolve_name(name.encode()) for name in filter_of(unit)
    }

    def allow(name: str, *comparisons: Comparison) -> None:
        array = (Comparison * len(comparisons))(*comparisons)
        code = library.seccomp_rule_add_array(
            context, ALLOW, numbers[name], len(comparisons), array
        )
        assert code == 0, (name, code)

    (families,) = re.findall(r"^RestrictAddressFamilies=(.*)$", unit, re.MULTILINE)
    for family in families.split():
        allow("socket", Comparison(0, EQUAL, getattr(socket, family), 0))
    assert "MemoryDenyWriteExecute=yes" in unit
    for protection in (0, PROT_WRITE, PROT_EXEC):
        both = PROT_WRITE | PROT_EXEC
        allow("mmap", Comparison(2, MASKED, both, protection))
    allow("mprotect", Comparison(2, MASKED, PROT_EXEC, 0))
    apart = {"socket", "mmap", "mprotect"}
    for name, number in numbers.items():
        if number >= 0 and name not in apart:
            allow(name)
    assert library.seccomp_load(context) == 0
    assert not refused_calls_work(), "the filter has no effect"


def refused_calls_work() -> bool:
    """Whether something works that the unit does not allow."""
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
    except PermissionError:
        return False
    return True


if __name__ == "__main__":
    apply(Path(sys.argv[1]).read_text())
    os.execvp(sys.argv[2], sys.argv[2:])
