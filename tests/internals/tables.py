"""Tables that the documentation shows, made from the code."""

import dataclasses
import typing
from collections.abc import Iterator

from streamd.wire.stream.states import SENT_BY_CLIENT, SENT_BY_SERVER
from tests.auth.needs import AMQP, STREAM, Case

_WORDS = {
    "s": "the stream",
    "new": "the new name",
    "x": "the exchange",
    "y": "the other exchange",  # that it is bound to, or an alternate
    "super": "the super stream",
    "super-0": "the partitions",
    "new-0": "the partitions",
    "amq.default": "`amq.default`",
}
_NOT_NAMED = {"super-1", "new-1"}  # as super-0, new-0


def commands() -> Iterator[str]:
    """A row for each command of the stream protocol, its answer beside it."""
    kinds = sorted(SENT_BY_CLIENT | SENT_BY_SERVER, key=lambda kind: (kind.KEY, _version(kind)))
    answers = {kind.KEY & 0x7FFF: kind for kind in kinds if kind.KEY & 0x8000}
    for kind in kinds:
        if not kind.KEY & 0x8000:
            answer = answers.get(kind.KEY)
            cells = (
                f"{kind.KEY}" if kind.KEY < 0x400 else f"0x{kind.KEY:04x}",
                f"`{kind.__name__}`",
                f"{_version(kind)}",
                _sender(kind),
                _fields(kind),
                _fields(answer) if answer is not None else "no answer",
            )
            yield f"| {' | '.join(cells)} |"


def _version(kind: type[typing.Any]) -> int:
    return int(getattr(kind, "VERSION", 1))


def _sender(kind: type[typing.Any]) -> str:
    both = kind in SENT_BY_CLIENT and kind in SENT_BY_SERVER
    return "both" if both else "client" if kind in SENT_BY_CLIENT else "server"


def _fields(kind: type[typing.Any]) -> str:
    names = [field.name for field in dataclasses.fields(kind)]
    shown = [name for name in names if name != "correlation_id"]
    text = ", ".join(shown) or "nothing"
    return text if "correlation_id" not in names or kind.KEY & 0x8000 else f"*id*, {text}"


def rights() -> Iterator[str]:
    """A row for each command and method that needs a right."""
    for kind, case in STREAM.items():
        yield f"| `{kind.__name__}` | {_needs(case)} |"
    for name, case in AMQP.items():
        method, _, what = name.partition(" ")
        yield f"| `{method}`{', ' + what if what else ''} | {_needs(case)} |"


def _needs(case: Case) -> str:
    found: dict[str, None] = {}
    for alternatives in case.needs:
        if alternatives[0][1] in _NOT_NAMED:
            continue
        verbs = [right.name.lower() for right, _ in alternatives]
        found[f"{' or '.join(verbs)} {_WORDS[alternatives[0][1]]}"] = None
    return ", ".join(found)
