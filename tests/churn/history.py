"""What clients were answered, and whether there is an order of their requests that explains it.

Requests about the same things make one history. It is explained when every request can be given a
moment between its sending and its answer so that, one after the other at these moments, a small
state machine (models.py) would have given the same answers. A request whose connection was dropped
has no answer: it may have been carried out at any moment since, or never.

Source: Wing and Gong, Testing and Verifying Concurrent Objects; Lowe, Testing for Linearizability
(the search is by answers in the order in which they came, which remembers sets of states).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

_MOST_CASES = 30_000  # that are looked at for one answer
_SHOWN = 14  # requests before one that cannot be explained

LOST = "lost"  # the outcome of a request whose connection was dropped
_HARMLESS = (
    "same",
    "exists",
    "conflict",
    "missing",
    "none",
)  # answers of requests that have no effect
OK, NEW, SAME, EXISTS, CONFLICT, MISSING = "ok", "new", "same", "exists", "conflict", "missing"
NONE = "none"  # there is a stream, without what was asked for
Outcome = Hashable
State = Any


class Call(NamedTuple):
    """What is asked for, whatever the protocol."""

    kind: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.arguments))})"


class Model(Protocol):
    """A state machine.

    Attributes:
        initial: the state in the beginning; states can be hashed.
        reads: the kinds of calls that never change it.
    """

    initial: State
    reads: frozenset[str]

    def step(self, state: State, call: Call) -> Iterable[tuple[Outcome, State]]:
        """What a call may be answered in a state, each with the state after it."""


@dataclass(eq=False)
class Request:
    """One request.

    Attributes:
        call: what was asked for.
        client: by whom.
        sent: its place among all events.
        answered: the same for the answer; for a lost one, when it can have no effect any more.
        outcome: the answer.
    """

    call: Call
    client: str
    sent: int
    answered: int = 1 << 60
    outcome: Outcome = LOST

    def __str__(self) -> str:
        return f"{self.sent}-{self.answered} {self.client}: {self.call} -> {self.outcome}"


class Verdict(NamedTuple):
    """The result for one history.

    Attributes:
        fault: what cannot be explained; empty when everything can.
        is_decided: False when there were too many cases to look at.
    """

    fault: str = ""
    is_decided: bool = True


class History:
    """The requests about the same things.

    Args:
        name: of these things.
        model: what they may be answered.
        tick: the number of the next event; the same for all histories of a run.
    """

    def __init__(self, name: str, model: Model, tick: Callable[[], int]) -> None:
        self.name = name
        self.requests: list[Request] = []
        self._model = model
        self._tick = tick

    def begin(self, call: Call, client: str) -> Request:
        """A request is about to be sent."""
        request = Request(call, client, self._tick())
        self.requests.append(request)
        return request

    def end(self, request: Request, outcome: Outcome) -> None:
        """It was answered."""
        request.answered, request.outcome = self._tick(), outcome

    def expire(self, request: Request) -> None:
        """It was lost, and long enough ago to have no effect any more."""
        request.answered = self._tick()

    def judge(self) -> Verdict:
        """Whether all answers can be explained."""
        return _Search(self.name, self._model, self.requests).run()


class _Case(NamedTuple):
    """A state that things may be in, and the unanswered requests that have led to it.

    Attributes:
        state: see above.
        done: those that will be answered.
        lost: those that will not.
    """

    state: State
    done: frozenset[Request]
    lost: frozenset[Request]


class _Cases:
    """Cases without those that others make needless.

    Lost requests that are not used up may be used later, but need not be: of two cases that differ
    only in them, the one that has used fewer explains whatever the other one does.
    """

    def __init__(self) -> None:
        self._lost: dict[tuple[State, frozenset[Request]], list[frozenset[Request]]] = {}

    def add(self, case: _Case) -> bool:
        """Add a case; returns whether it is needed."""
        known = self._lost.setdefault((case.state, case.done), [])
        if any(lost <= case.lost for lost in known):
            return False
        known[:] = [lost for lost in known if not case.lost <= lost]
        known.append(case.lost)
        return True

    def all(self) -> list[_Case]:
        """All that are needed."""
        return [_Case(*key, lost) for key, losts in self._lost.items() for lost in losts]


class _TooMany(Exception):
    """There are too many cases."""


class _Search:
    def __init__(self, name: str, model: Model, requests: list[Request]) -> None:
        self._name = name
        self._model = model
        self._requests = requests
        self._waiting: list[Request] = []  # those that end first come first
        self._known: dict[tuple[State, Call], Sequence[tuple[Outcome, State]]] = {}
        self._cases = [_Case(model.initial, frozenset(), frozenset())]

    def run(self) -> Verdict:
        events = [(request.sent, True, request) for request in self._requests]
        events += [(request.answered, False, request) for request in self._requests]
        for _, is_sent, request in sorted(events, key=lambda event: event[0]):
            if is_sent:
                self._waiting.append(request)
                self._waiting.sort(key=lambda request: request.answered)
                continue
            before = self._cases
            try:
                self._answer(request)
            except _TooMany:
                return Verdict(is_decided=False)
            if not self._cases:
                return Verdict(self._sentence(request, before))
            self._waiting.remove(request)
        return Verdict()

    def _answer(self, request: Request) -> None:
        found, seen = _Cases(), _Cases()
        if request.outcome == LOST:
            for state, done, lost in self._cases:
                found.add(_Case(state, done, lost - {request}))
            self._cases = found.all()
            return
        todo, count = list(self._cases), 0
        while todo:
            case = self._settled(todo.pop())
            if request in case.done:
                found.add(case._replace(done=case.done - {request}))
            elif seen.add(case):
                todo += self._next(case)
                count += 1
                if count > _MOST_CASES:
                    raise _TooMany
        self._cases = found.all()

    def _settled(self, case: _Case) -> _Case:
        """With all requests done that can have no effect, and whose answer is right here."""
        harmless = {
            request
            for request in self._waiting
            if request not in case.done
            and (request.outcome in _HARMLESS or request.call.kind in self._model.reads)
            and (request.outcome, case.state) in self._steps(case.state, request.call)
        }
        return case._replace(done=case.done | harmless) if harmless else case

    def _next(self, case: _Case) -> Iterable[_Case]:
        state, done, lost = case
        tried: set[Call] = set()  # of equal ones, the one that ends first is as good as any
        for request in self._waiting:
            if request.outcome == LOST:
                if request in lost or request.call in tried:
                    continue
                tried.add(request.call)
                for _, after in self._steps(state, request.call):
                    if after != state:
                        yield _Case(after, done, lost | {request})
            elif request not in done:
                for outcome, after in self._steps(state, request.call):
                    if outcome == request.outcome:
                        yield _Case(after, done | {request}, lost)

    def _steps(self, state: State, call: Call) -> Sequence[tuple[Outcome, State]]:
        key = state, call
        if key not in self._known:
            self._known[key] = tuple(self._model.step(state, call))
        return self._known[key]

    def _sentence(self, request: Request, before: Iterable[_Case]) -> str:
        states = sorted({str(case.state) for case in before})
        earlier = [r for r in self._requests if r.sent < request.answered and r is not request]
        lines = [f"{self._name}: no order of the requests explains {request}"]
        lines.append(f"  before it, the state was one of: {'; '.join(states[:6])}")
        beside = sorted(str(r) for r in self._waiting if r is not request)
        lines += [f"  at the same time: {r}" for r in beside[:_SHOWN]]
        answered = sorted(earlier, key=lambda r: r.answered)
        last = [r for r in answered if r not in self._waiting][-_SHOWN:]
        return "\n".join([*lines, *(f"  earlier: {r}" for r in last)])
