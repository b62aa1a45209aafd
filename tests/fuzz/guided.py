"""One process of the search: inputs that grow from those that reached new code.

`python -m tests.fuzz.guided TARGET FAILURES ...` with libFuzzer's options and folders. It is
started by `python -m tests.fuzz`, and imports the server only once its code is instrumented.

The library is Atheris, libFuzzer for Python. It puts its counters into the bytecode, where a trace
function would be called for every line, and it works before Python 3.12, which `sys.monitoring`
does not. libFuzzer puts what values were compared with into later inputs, and makes a corpus small.
"""

import contextlib
import io
import sys
import traceback
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

_PLAIN = 0.3  # of the changes are libFuzzer's own, which know no protocol


class Searcher:
    """Tries what libFuzzer finds, and keeps what breaks something.

    Args:
        target: what is fuzzed.
        failures: the folder for inputs that break something.
    """

    def __init__(self, target: "Target", failures: Path) -> None:
        self._target = target
        self._failures = failures
        self._known: set[str] = set()

    def try_input(self, data: bytes) -> None:
        """What libFuzzer calls."""
        from tests.fuzz import failing  # noqa: PLC0415 - imports the server

        try:
            self._target.run(data or b"\0")
        except Exception as error:  # noqa: BLE001 - that is what is sought
            kind = failing.kind_of(error)
            if kind in self._known:
                failing.forget(self._target)
                return
            self._known.add(kind)
            text = "".join(traceback.format_exception(error))
            place = failing.keep(self._target, data or b"\0", self._failures)
            print(f"{text}\npython -m tests.fuzz {place}", flush=True)

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Another input, changed with or without knowledge of its protocol."""
        chance = Random(seed)
        if chance.random() < _PLAIN:
            return bytes(atheris.Mutate(data, max_size))
        return self._target.mutated(bytes(data), chance)[:max_size]

    def cross(self, one: bytes, other: bytes, max_size: int, seed: int) -> bytes:
        """An input from two."""
        if not one or not other:
            return bytes(one or other)
        return self._target.crossed(bytes(one), bytes(other), Random(seed))[:max_size]


def main() -> None:
    """Search until libFuzzer ends the process."""
    _, name, failures, *options = sys.argv
    # libFuzzer starts itself anew to make a corpus smaller.
    program = f"{sys.executable} -m tests.fuzz.guided {name} {failures}"
    with (
        contextlib.redirect_stderr(io.StringIO()),
        atheris.instrument_imports(include=["streamd", "segments"]),
    ):
        from tests.fuzz import targets  # noqa: PLC0415
    searcher = Searcher(targets.BY_NAME[name], Path(failures))
    atheris.Setup(
        [program, *options],
        searcher.try_input,
        custom_mutator=searcher.mutate,
        custom_crossover=searcher.cross,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
