"""What the process does in which key tables are made: it gets jobs and answers them, in JSON.

A process and not a thread, because a thread would share the interpreter with the event loop. Beside
the process the server's own time for a message is the same as without, 0.3 µs. How fast it takes
them then could not be told on two cores with much other work: 0.5 to 1.3 of without, a thread 0.5
(`python -m benchmarks.find`; to be measured on a machine that is quiet).

It yields the processor to others. It ends with the server, whatever it is at: what it leaves behind
is a file with a temporary name, which the next start removes, or a table that nobody asks for.
"""

import json
import traceback
from typing import NamedTuple

from segments.derived.key_files import KeyJob, make_table
from segments.disk import OsDisk
from segments.errors import SegmentsError, StorageError
from segments.keys.index import Place

# Beside a process that never waits it has a sixteenth of a processor: it goes on, and publishing
# hardly notices. With 19 it would have a seventieth, and be behind for hours on a busy machine.
NICE = 12


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
    """A job as a message."""
    return json.dumps(job).encode()


def decode_job(message: bytes) -> KeyJob:
    """What `encode_job` was given."""
    folder, base, end, properties, tables, start, position, is_sealed = json.loads(message)
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


def decode_answer(message: bytes) -> Answer:
    """An answer from its message."""
    return Answer(*json.loads(message))


def work(message: bytes) -> Answer:
    """Do a job."""
    try:
        make_table(OsDisk(), decode_job(message))
    except SegmentsError as error:
        return Answer(str(error), isinstance(error, StorageError) and error.is_temporary)
    except Exception:  # noqa: BLE001 - a bug: the server says so
        return Answer(traceback.format_exc(), is_bug=True)
    return Answer()


def answered(message: bytes, _ask: object) -> bytes:
    """The answer to a job; see streamd.net.serve."""
    return json.dumps(work(message)).encode()
