"""Pages of searches in a process of their own: how they come there, and what they ask from there.

What comes from the process is checked when it is read: it works on what anybody has published.
"""

import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Union

import msgspec

from segments.disk import File, OsFile
from segments.search.handing import (
    Failed,
    Fetched,
    Files,
    Notes,
    Outcome,
    Question,
    Some,
)

Reply: TypeAlias = Union[Question, Outcome]  # noqa: UP007 - one name for both


def _hook(value: Any) -> Any:  # noqa: ANN401 - see msgspec
    if isinstance(value, range):
        return value.start, value.stop
    if isinstance(value, frozenset):
        return list(value)
    raise NotImplementedError


def _unhook(kind: type, value: Any) -> Any:  # noqa: ANN401 - see msgspec
    if kind is range:
        return range(*msgspec.convert(value, tuple[int, int]))
    raise NotImplementedError


encoder = msgspec.msgpack.Encoder(enc_hook=_hook)
_decoder = msgspec.msgpack.Decoder(Reply, dec_hook=_unhook)


def decode(message: bytes) -> Question | Outcome:
    """What the process asks, or has found.

    Raises:
        ValueError: it is neither.
    """
    found: Question | Outcome = _decoder.decode(message)
    return found


def encode(told: object) -> tuple[bytes, Mapping[str, File]]:
    """A job, or an answer, for the process; and files that go beside it, in their order."""
    files: Mapping[str, File] = {}
    if isinstance(told, Fetched | Some):
        files = told.files.files
        told = told._replace(files=told.files._replace(files={}))
    elif isinstance(told, Files):
        files = told.files
        told = told._replace(files={})
    return pickle.dumps((told, tuple(files))), files


def _told(message: bytes, descriptors: list[int]) -> Any:  # noqa: ANN401 - of many kinds
    told, names = pickle.loads(message)  # noqa: S301 - of the process that has started this one
    files = {
        name: OsFile.of(descriptor, name)
        for name, descriptor in zip(names, descriptors, strict=True)
    }
    if isinstance(told, Fetched | Some):
        return told._replace(files=told.files._replace(files=files))
    return told._replace(files=files) if isinstance(told, Files) else told


def work(message: bytes, ask: Callable[[bytes], tuple[bytes, list[int]]]) -> bytes:
    """Search for a page."""

    def asked(question: Question) -> Any:  # noqa: ANN401 - of many kinds
        return _told(*ask(encoder.encode(question)))

    from segments.search.handed import conduct  # noqa: PLC0415 - the owner does without

    steps = conduct(_told(message, []), asked, time.monotonic)
    answer: Any = None
    try:
        while True:
            question = steps.send(answer)
            answer = None if question is None else asked(question)
    except StopIteration as end:
        return encoder.encode(end.value)
    except Exception:  # noqa: BLE001 - a bug: the server says so
        return encoder.encode(Failed(traceback.format_exc(), Notes(), is_bug=True))
