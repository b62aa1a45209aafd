"""Tables that the documentation shows, made from the code."""

import ast
import re
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from segments.bloom import false_positive_rate
from streamd.wire.amqp091.states import CHANNEL_TRANSITIONS, CONNECTION_TRANSITIONS, ChannelState
from streamd.wire.amqp10 import states as amqp10
from streamd.wire.stream.commands import SaslAuthenticate, SaslAuthenticateResponse
from streamd.wire.stream.states import SENT_BY_CLIENT, SENT_BY_SERVER, TRANSITIONS, State
from tests.auth.needs import AMQP, STREAM, Case

ROOT = Path(__file__).parents[2]
_STEPS_WHILE_OPEN = (SaslAuthenticate, SaslAuthenticateResponse)

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
    names = kind.__struct_fields__
    shown = [name for name in names if name != "correlation_id"]
    if "correlation_id" in names and not kind.KEY & 0x8000:
        shown = ["*id*", *shown]
    return ", ".join(shown) or "nothing"


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


def stream_states() -> Iterator[str]:
    """A row for each step of a connection of the stream protocol, but those of an open one."""
    for (before, kind), after in TRANSITIONS.items():
        is_session = before is after is State.OPEN
        if not (is_session and kind not in _STEPS_WHILE_OPEN) and kind.__name__ != "Heartbeat":
            yield f"| `{before.name}` | `{kind.__name__}` | `{after.name}` |"


def amqp_states() -> Iterator[str]:
    """A row for each method that moves an AMQP connection, or one of its channels."""
    for (before, kind), after in CONNECTION_TRANSITIONS.items():
        yield f"| connection | `{before.name}` | `{kind.__name__}` | `{after.name}` |"
    for (channel, kind), then in CHANNEL_TRANSITIONS.items():
        if not channel is then is ChannelState.OPEN:
            yield f"| channel | `{channel.name}` | `{kind.__name__}` | `{then.name}` |"


def amqp10_states() -> Iterator[str]:
    """A row for each performative that a client of AMQP 1.0 may send."""
    for (before, kind), after in amqp10.TRANSITIONS.items():
        yield f"| `{before.name}` | `{kind.__name__}` | `{after.name}` |"


def state_changes(state: type[Enum]) -> set[tuple[str, str]]:
    """Where the product sets a state: the function's name, and which one."""
    found = set()
    for folder in ("streamd/broker", "streamd/connections", "streamd/wire"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found |= {(node.name, name) for name in _sets(node, state.__name__)}
    return found


def _sets(function: ast.AST, enum: str) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = [t for target in node.targets for t in ast.walk(target)]
            if any(isinstance(t, ast.Attribute) and t.attr == "state" for t in targets):
                for value in ast.walk(node.value):
                    if isinstance(value, ast.Attribute) and ast.unparse(value.value) == enum:
                        yield value.attr


def background_tasks() -> set[str]:
    """The kinds of tasks, and of guarded work, that the product gives to the supervisor."""
    found = set()
    for path in (ROOT / "streamd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = ast.unparse(node.func)
                if name == "start" or re.search(
                    r"supervisor\.(start|start_once|guarded)$|^keep$", name
                ):
                    found.add(str(node.args[0].value))
    return found


def false_positives() -> Iterator[str]:
    """How often filters are wrong: a row for each number of values, a column for each size."""
    sizes = (16, 32, 64, 128, 255)
    yield f"| Values | {' | '.join(f'{size} bytes' for size in sizes)} |"
    yield "|---" * (len(sizes) + 1) + "|"
    for number in (1, 5, 10, 20, 50, 100, 200, 500):
        rates = (100 * false_positive_rate(number, size) for size in sizes)
        yield f"| {number} | {' | '.join(f'{rate:.3f} %' for rate in rates)} |"
