"""What clients were answered, and whether there is an order of their requests that explains it.

Requests about the same things make one history. It is explained when every request can be given a
moment between its sending and its answer so that, one after the other at these moments, a small
state machine (models.py) would have given the same answers. A request whose connection was lost
has no answer: it may have been carried out at any moment since, as long as its server lives, or
never.

Source: Wing and Gong, Testing and Verifying Concurrent Objects; Lowe, Testing for Linearizability
(the search is by answers in the order in which they came, which remembers sets of states).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

_MOST_CASES = 30_000  # that are looked at for one answer
_SHOWN = 14  # requests before one that cannot be explained
_NEVER = 1 << 60

# What a request comes to. Doors tell less: an answer of AMQP means one of several.
OK, NEW, SAME, CONFLICT, MISSING, NONE = "ok", "new", "same", "conflict", "missing", "none"
_HARMLESS = frozenset((SAME, CONFLICT, MISSING, NONE))  # what has no effect
Outcome = Hashable
Answer = frozenset[Outcome]
LOST: Answer = frozenset()
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
        """What a call may come to in a state, each with the state after it."""


@dataclass(eq=False)
class Request:
    """One request.

    Attributes:
        call: what was asked for.
        client: by whom.
        sent: its place among all events.
        answered: the same for the answer; for a lost one, when it can have no effect any more.
        answer: what it may have come to.
    """

    call: Call
    client: str
    sent: int
    answered: int = _NEVER
    answer: Answer = LOST

    def __str__(self) -> str:
        outcomes = " or ".join(sorted(map(str, self.answer))) or "lost"
        return f"{self.sent}-{self.answered} {self.client}: {self.call} -> {outcomes}"


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
        self.model = model
        self._tick = tick

    def begin(self, call: Call, client: str) -> Request:
        """A request is about to be sent."""
        request = Request(call, client, self._tick())
        self.requests.append(request)
        return request

    def end(self, request: Request, answer: Answer) -> None:
        """It was answered, or it is known to have no effect any more."""
        if request.answered == _NEVER:
            request.answered, request.answer = self._tick(), answer

    def end_all(self, call: Call | None = None) -> None:
        """The server is no more: what is not answered has no effect from now on.

        Args:
            call: what that does to the things.
        """
        for request in self.requests:
            self.end(request, LOST)
        if call is not None:
            self.end(self.begin(call, "the world"), frozenset((OK,)))

    def judge(self) -> str:
        """What cannot be explained; empty where everything can, or there are too many cases."""
        return _Search(self.name, self.model, self.requests).run()


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
        self.model = model
        self._requests = requests
        self._waiting: list[Request] = []  # those that end first come first
        self._known: dict[tuple[State, Call], Sequence[tuple[Outcome, State]]] = {}
        self._cases = [_Case(model.initial, frozenset(), frozenset())]

    def run(self) -> str:
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
                return ""
            if not self._cases:
                return self._sentence(request, before)
            self._waiting.remove(request)
        return ""

    def _answer(self, request: Request) -> None:
        found, seen = _Cases(), _Cases()
        todo, count = list(self._cases), 0
        while todo:
            case = self._settled(todo.pop())
            if request.answer == LOST:
                found.add(case._replace(lost=case.lost - {request}))
            elif request in case.done:
                found.add(case._replace(done=case.done - {request}))
                continue
            if seen.add(case):
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
            if request.answer
            and request not in case.done
            and (request.answer <= _HARMLESS or request.call.kind in self.model.reads)
            and any(
                outcome in request.answer and state == case.state
                for outcome, state in self._steps(case.state, request.call)
            )
        }
        return case._replace(done=case.done | harmless) if harmless else case

    def _next(self, case: _Case) -> Iterable[_Case]:
        state, done, lost = case
        tried: set[Call] = set()  # of equal ones, the one that ends first is as good as any
        for request in self._waiting:
            if request.answer == LOST:
                if request in lost or request.call in tried:
                    continue
                tried.add(request.call)
                for _, after in self._steps(state, request.call):
                    if after != state:
                        yield _Case(after, done, lost | {request})
            elif request not in done:
                for outcome, after in self._steps(state, request.call):
                    if outcome in request.answer:
                        yield _Case(after, done | {request}, lost)

    def _steps(self, state: State, call: Call) -> Sequence[tuple[Outcome, State]]:
        key = state, call
        if key not in self._known:
            self._known[key] = tuple(self.model.step(state, call))
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
