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


def encode(answer: object) -> tuple[bytes, Mapping[Any, File]]:
    """A job, or an answer, for the process; and files that go beside it, in their order."""
    parts = _parts(answer)
    files = {(base, suffix): f for base, one in parts.items() for suffix, f in one.files.items()}
    bare = _with(answer, {base: one._replace(files={}) for base, one in parts.items()})
    return pickle.dumps((bare, tuple(files))), files


def told(message: bytes, opened: Callable[[int, str], File]) -> Any:  # noqa: ANN401 - of many kinds
    """What was encoded.

    Args:
        message: from `encode`.
        opened: gives a file that came beside it, by its number and suffix.
    """
    bare, names = pickle.loads(message)  # noqa: S301 - of the process that has started this one
    files: dict[int, dict[str, File]] = {}
    for number, (base, suffix) in enumerate(names):
        files.setdefault(base, {})[suffix] = opened(number, suffix)
    parts = _parts(bare).items()
    return _with(bare, {base: one._replace(files=files.get(base, {})) for base, one in parts})


def _parts(answer: object) -> Mapping[int, Files]:
    """The files in an answer, by the segments that they are of where it has several."""
    if isinstance(answer, Some):
        return answer.files
    if isinstance(answer, Fetched):
        return {0: answer.files}
    return {0: answer} if isinstance(answer, Files) else {}


def _with(answer: object, parts: Mapping[int, Files]) -> object:
    """The same answer with these files."""
    if isinstance(answer, Some):
        return answer._replace(files=parts)
    if isinstance(answer, Fetched):
        return answer._replace(files=parts[0])
    return parts.get(0, answer)


def work(message: bytes, ask: Callable[[bytes], tuple[bytes, list[int]]]) -> bytes:
    """Search for a page."""

    def asked(question: Question) -> Any:  # noqa: ANN401 - of many kinds
        answer, files = ask(encoder.encode(question))
        return told(answer, lambda number, name: OsFile.of(files[number], name))

    from segments.search.handed import conduct  # noqa: PLC0415 - the owner does without

    steps = conduct(told(message, OsFile.of), asked, time.monotonic)
    answer: Any = None
    try:
        while True:
            question = steps.send(answer)
            answer = None if question is None else asked(question)
    except StopIteration as end:
        return encoder.encode(end.value)
    except Exception:  # noqa: BLE001 - a bug: the server says so
        return encoder.encode(Failed(traceback.format_exc(), Notes(), is_bug=True))
