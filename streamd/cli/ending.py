"""How a command ends: with its result or one line, and an exit code that scripts can rely on.

0: done, or the reader of stdout had enough. 1: refused or failed. 2: not understood. 130: Ctrl-C.
Each error is turned into one of these here, so that no command has to think of it.
"""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

import click

from segments.errors import leaves
from streamd.cli.terminal import Failed, Interrupted, Misused, ReaderLeft, drop_unwritten


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command to its end, say on stderr what went wrong, and return the exit code."""
    open_standard_streams()
    try:
        code = command()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the last one who can say anything
        code = _tell(error)
    for stream in (sys.stdout, sys.stderr):
        drop_unwritten(stream)
    return code if isinstance(code, int) else 0


def open_standard_streams() -> None:
    """Open stdin, stdout and stderr where they were closed: reading and writing fail, not Python.

    Their descriptors are then taken; else the next file or socket that is opened would get one, and
    with it what somebody prints.
    """
    for name, mode in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, mode)  # the lowest that is free, so the one that was closed
            setattr(sys, name, open(file, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # not one of Python's own
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def show_where(error: BaseException) -> None:
    """Print where an error comes from, for --debug."""
    if not isinstance(error, click.exceptions.Exit | click.UsageError | ReaderLeft):
        traceback.print_exception(error)


def _tell(error: BaseException) -> int:
    """Say what there is to say of an error; returns the exit code."""
    found = list(leaves(error))
    interrupts = (leaf for leaf in found if isinstance(leaf, KeyboardInterrupt | click.Abort))
    first = next(interrupts, found[0])
    if isinstance(first, ReaderLeft | BrokenPipeError):
        return 0
    if isinstance(first, click.exceptions.Exit):
        return first.exit_code
    ending = _in_words(first)
    with suppress(OSError):
        ending.show()
    return ending.exit_code


def _in_words(error: BaseException) -> click.ClickException:
    match error:
        case click.Abort(__context__=EOFError()):
            return Failed("stdin ended before the answer")
        case KeyboardInterrupt() | click.Abort():
            return Interrupted("interrupted")
        case click.UsageError():
            is_help = type(error).__name__ == "NoArgsIsHelpError"  # click 8.1 does not have it
            return error if is_help else _usage(error)
        case click.ClickException():
            return error
        case OSError():
            return Failed(f"{error.filename or 'input or output'}: {error.strerror or error}")
    return Failed(
        f"this is a bug in streamd, {type(error).__name__}: {error}; "
        "--debug shows where it is, please report it"
    )


def _usage(error: click.UsageError) -> click.ClickException:
    """What click finds, in the one line that all errors have."""
    if isinstance(error.__context__, OSError):  # it was understood; the file cannot be opened
        return Failed(error.format_message())
    found = error.format_message().rstrip(".")
    joint = " See" if found.endswith(("?", "?)")) else "; see"  # click has asked: did you mean …?
    hint = f"{joint} {error.ctx.command_path} --help" if error.ctx is not None else ""
    return Misused(f"{found}{hint}")
