"""`python -m tests.fuzz`: other inputs than the test suite's, for as long as you like."""

import sys
import tempfile
import time
from pathlib import Path

import click

from tests.fuzz.fuzzer import A_SERVER, PROTOCOLS, Broken, Fuzzer, blocks_in_use

_WARM = 4  # servers until everything that is remembered for good is
_GROWTH = 1.2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=60.0, show_default=True, help="For all protocols together.")
@click.option("--seed", default=None, type=int, help="Of a run before; else one of its own.")
@click.option("--only", type=click.Choice([p.name for p in PROTOCOLS]), help="One protocol.")
@click.option("--go-on", is_flag=True, help="Also after an input that has broken something.")
@click.option("--number", default=None, type=int, help="This input only.")
def main(
    seconds: float, seed: int | None, only: str | None, go_on: bool, number: int | None
) -> None:
    """Send changed conversations to a server, and check that it survives them."""
    seed = time.time_ns() % 1_000_000_000 if seed is None else seed
    chosen = [protocol for protocol in PROTOCOLS if only in (None, protocol.name)]
    failed = False
    print(f"seed {seed}")
    for protocol in chosen:
        with tempfile.TemporaryDirectory(prefix="streamd-fuzz-") as folder:
            fuzzer = Fuzzer(protocol, seed, Path(folder))
            started = time.perf_counter()
            end = started + (seconds / len(chosen) if number is None else 0)
            failures = _run(fuzzer, end, go_on=go_on, first=number)
            for failure in failures:
                print(failure)
            failed = failed or bool(failures)
            took = time.perf_counter() - started
            print(f"{protocol.name}: {fuzzer.tried:,} inputs in {took:.0f} s", flush=True)
    sys.exit(failed)


def _run(fuzzer: Fuzzer, end: float, *, go_on: bool, first: int | None) -> list[str]:
    """Servers one after the other; memory must not grow from one to the next."""
    servers, before = 0, 0
    failures: list[str] = []
    start, count = (0, A_SERVER) if first is None else (first, 1)
    while go_on or not failures:
        try:
            fuzzer.run(range(start, start + count))
        except Broken as broken:
            failures.append(str(broken))
        start += count
        servers += 1
        if servers == _WARM:
            before = blocks_in_use()
        if time.perf_counter() >= end:
            break
    now = blocks_in_use()
    if before and now > _GROWTH * before:
        failures.append(f"{now:,} pieces of memory are in use, {before:,} were before")
    return failures


if __name__ == "__main__":
    main()
