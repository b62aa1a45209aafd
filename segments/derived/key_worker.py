"""The process in which key tables are made: it reads jobs and answers them, a line of JSON each.

A process and not a thread, because a thread would share the interpreter with the event loop. Beside
the process the server's own time for a message is the same as without, 0.3 µs. How fast it takes
them then could not be told on two cores with much other work: 0.5 to 1.3 of without, a thread 0.5
(`python -m benchmarks.find`; to be measured on a machine that is quiet).

It yields the processor to others. When its input ends, as it does when the server is
killed, it ends at once, whatever it is at; what it leaves behind is a file with a temporary name,
which the next start removes, or a table that nobody asks for.
"""

import json
import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from segments.derived.key_files import KeyJob, make_table
from segments.disk import OsDisk
from segments.errors import SegmentsError, StorageError
from segments.keys.index import Place

# Beside a process that never waits it has a sixteenth of a processor: it goes on, and publishing
# hardly notices. With 19 it would have a seventieth, and be behind for hours on a busy machine.
_NICE = 12
_OOM_SCORE = "/proc/self/oom_score_adj"


class Answer(NamedTuple):
    """What became of a job.

    Attributes:
        fault: why it was not done; empty when it was.
        is_temporary: the same job may succeed later.
        is_bug: the fault is a traceback.
        has_died: the process has.
    """

    fault: str = ""
    is_temporary: bool = False
    is_bug: bool = False
    has_died: bool = False


def encode_job(job: KeyJob) -> bytes:
    """A job as a line."""
    return json.dumps(job).encode() + b"\n"


def decode_job(line: bytes) -> KeyJob:
    """What `encode_job` was given."""
    folder, base, end, properties, tables, start, position, is_sealed = json.loads(line)
    return KeyJob(
        folder,
        base,
        Place(*end),
        tuple(properties),
        tuple(tables),
        Place(*start),
        position,
        is_sealed,
    )


def decode_answer(line: bytes) -> Answer:
    """An answer from its line."""
    return Answer(*json.loads(line))


def work(line: bytes) -> Answer:
    """Do a job."""
    try:
        make_table(OsDisk(), decode_job(line))
    except SegmentsError as error:
        return Answer(str(error), isinstance(error, StorageError) and error.is_temporary)
    except Exception:  # noqa: BLE001 - a bug: the server says so
        return Answer(traceback.format_exc(), is_bug=True)
    return Answer()


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Do jobs until there are no more."""
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in jobs:
            waiting.put(line)
        os._exit(0)  # in the middle of a job, perhaps: nobody waits for it any more

    threading.Thread(target=read, daemon=True).start()
    while True:
        answer = work(waiting.get())
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def yield_to_others() -> None:
    """Take the processor, and keep memory, only where nobody else needs it.

    Without it the work is the same, so where it is refused, as by a unit of systemd, it is left.
    """
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError), open(_OOM_SCORE, "w") as file:
        file.write("1000")  # this process ends sooner than any other


def main() -> None:
    """Serve the process that has started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is meant for the server
    yield_to_others()
    serve(sys.stdin.buffer, sys.stdout.buffer)
