"""What requests come to: state machines of things that several clients know by name."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.world.history import CONFLICT, MISSING, NEW, NONE, OK, SAME, Call, Outcome

RESTART = Call("restart")
OFFSETS = range(4)  # that are stored


class Model:
    """A state machine whose methods are its calls; each gives what it comes to, and the state."""

    initial: Any
    reads: frozenset[str] = frozenset()

    def step(self, state: Any, call: Call) -> Iterable[tuple[Outcome, Any]]:
        """See tests.world.history.Model."""
        if call == RESTART:
            return self.restart(state)
        return (getattr(self, call.kind)(state, *call.arguments),)

    def restart(self, state: Any) -> Iterable[tuple[Outcome, Any]]:
        """The server was killed, or its machine lost power: what is declared stays."""
        return ((OK, state),)


class Stream(NamedTuple):
    """One stream: the name of its arguments, a stored offset, the properties that are keys."""

    arguments: str
    offset: int | None = None
    keys: str = ""


class StreamModel(Model):
    """Of a `Stream`, None while there is none.

    Attributes:
        is_closed_soon: its log is closed and opened again at any time, which cuts a stored offset
            to the end of the messages, as a restart does.
    """

    initial: Stream | None = None
    reads = frozenset(("find", "arguments", "stored", "keys"))
    is_closed_soon = False

    def step(self, state: Stream | None, call: Call) -> Iterable[tuple[Outcome, Any]]:
        lower: tuple[int | None, ...] = ()
        if self.is_closed_soon and call != RESTART and state is not None:
            lower = () if state.offset is None else (None, *range(state.offset))
        yield from super().step(state, call)
        for offset in lower:
            yield from super().step(state and state._replace(offset=offset), call)

    def restart(self, state: Stream | None) -> Iterable[tuple[Outcome, Any]]:
        """A stored offset may be lost with the power, and is cut to the end of the messages."""
        if state is None or state.offset is None:
            return ((OK, state),)
        return [(OK, state._replace(offset=offset)) for offset in (None, *OFFSETS)]

    def create(self, state: Stream | None, wanted: str) -> tuple[Outcome, Stream]:
        if state is None:
            return NEW, Stream(wanted)
        return (SAME if state.arguments == wanted else CONFLICT), state

    def delete(self, state: Stream | None) -> tuple[Outcome, None]:
        return (MISSING if state is None else OK), None

    def find(self, state: Stream | None) -> tuple[Outcome, Stream | None]:
        return (MISSING if state is None else OK), state

    def arguments(self, state: Stream | None) -> tuple[Outcome, Stream | None]:
        return (MISSING if state is None else (OK, state.arguments)), state

    def store(self, state: Stream | None, offset: int) -> tuple[Outcome, Stream | None]:
        return (OK, state._replace(offset=offset)) if state else (MISSING, None)

    def forget(self, state: Stream | None) -> tuple[Outcome, Stream | None]:
        if state is None or state.offset is None:
            return (NONE if state else MISSING), state
        return OK, state._replace(offset=None)

    def stored(self, state: Stream | None) -> tuple[Outcome, Stream | None]:
        return ((OK, state.offset) if state else MISSING), state

    def set_keys(self, state: Stream | None, keys: str) -> tuple[Outcome, Stream | None]:
        return (OK, state._replace(keys=keys)) if state else (MISSING, None)

    def keys(self, state: Stream | None) -> tuple[Outcome, Stream | None]:
        return ((OK, state.keys) if state else MISSING), state


class Routes(NamedTuple):
    """An exchange and the streams that may be bound to it.

    Attributes:
        kind: of the exchange; None while there is none. `super` is a super stream.
        streams: those that exist.
        bindings: routing key and stream; of a super stream in the order of its partitions.
    """

    kind: str | None = None
    streams: frozenset[str] = frozenset()
    bindings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        streams = ",".join(sorted(self.streams))
        bindings = ",".join(f"{key}>{stream}" for key, stream in self.bindings)
        return f"[{self.kind} streams {streams} bindings {bindings}]"


SUPER = "super"


class RoutingModel(Model):
    """An exchange or super stream with its streams and bindings."""

    initial = Routes()
    reads = frozenset(("partitions", "route", "bound"))

    def make_super(
        self, state: Routes, keys: tuple[tuple[str, str], ...]
    ) -> tuple[Outcome, Routes]:
        streams = frozenset(stream for _, stream in keys)
        if state.kind is not None or state.streams & streams:
            return CONFLICT, state
        return NEW, Routes(SUPER, state.streams | streams, keys)

    def delete_super(self, state: Routes) -> tuple[Outcome, Routes]:
        if state.kind != SUPER:
            return MISSING, state
        gone = {stream for _, stream in state.bindings}
        return OK, Routes(None, state.streams - gone)

    def partitions(self, state: Routes) -> tuple[Outcome, Routes]:
        if state.kind != SUPER:
            return MISSING, state
        return (OK, tuple(stream for _, stream in state.bindings)), state

    def route(self, state: Routes, key: str) -> tuple[Outcome, Routes]:
        if state.kind != SUPER:
            return MISSING, state
        return (OK, tuple(stream for found, stream in state.bindings if found == key)), state

    def create_exchange(self, state: Routes, kind: str) -> tuple[Outcome, Routes]:
        if state.kind is None:
            return NEW, state._replace(kind=kind)
        return (SAME if state.kind == kind else CONFLICT), state

    def delete_exchange(self, state: Routes) -> tuple[Outcome, Routes]:
        return (MISSING if state.kind is None else OK), Routes(None, state.streams)

    def delete_unused(self, state: Routes) -> tuple[Outcome, Routes]:
        return (CONFLICT, state) if state.bindings else self.delete_exchange(state)

    def create_stream(self, state: Routes, name: str) -> tuple[Outcome, Routes]:
        if name in state.streams:
            return SAME, state
        return NEW, state._replace(streams=state.streams | {name})

    def delete_stream(self, state: Routes, name: str) -> tuple[Outcome, Routes]:
        if name not in state.streams:
            return MISSING, state
        bindings = tuple(item for item in state.bindings if item[1] != name)
        return OK, Routes(state.kind, state.streams - {name}, bindings)

    def bind(self, state: Routes, key: str, stream: str) -> tuple[Outcome, Routes]:
        if state.kind is None or stream not in state.streams:
            return MISSING, state
        if (key, stream) in state.bindings:
            return OK, state
        bindings = (*state.bindings, (key, stream))
        if state.kind != SUPER:  # only partitions have an order
            bindings = tuple(sorted(bindings))
        return OK, state._replace(bindings=bindings)

    def unbind(self, state: Routes, key: str, stream: str) -> tuple[Outcome, Routes]:
        if state.kind is None or stream not in state.streams:
            return MISSING, state
        bindings = tuple(item for item in state.bindings if item != (key, stream))
        return OK, state._replace(bindings=bindings)

    def bound(self, state: Routes) -> tuple[Outcome, Routes]:
        return (OK, tuple(sorted(state.bindings))), state


class Realm(NamedTuple):
    """A virtual host, a user, what it may do there, and a stream there."""

    has_host: bool = False
    has_user: bool = False
    may_enter: bool = False
    has_stream: bool = False


class RealmModel(Model):
    """A virtual host with a user and a stream; the owner of the virtual host may always enter."""

    initial = Realm()
    reads = frozenset(("enter_host", "find_user", "find_permission"))

    def create_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (SAME if state.has_host else NEW), state._replace(has_host=True)

    def delete_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK, Realm(has_user=state.has_user)) if state.has_host else (MISSING, state)

    def enter_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.has_host else MISSING), state

    def create_user(self, state: Realm) -> tuple[Outcome, Realm]:
        return (SAME if state.has_user else NEW), state._replace(has_user=True)

    def delete_user(self, state: Realm) -> tuple[Outcome, Realm]:
        gone = state._replace(has_user=False, may_enter=False)
        return (OK, gone) if state.has_user else (MISSING, state)

    def find_user(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.has_user else MISSING), state

    def permit(self, state: Realm) -> tuple[Outcome, Realm]:
        if not (state.has_host and state.has_user):
            return MISSING, state
        return (SAME if state.may_enter else NEW), state._replace(may_enter=True)

    def forbid(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.may_enter else MISSING), state._replace(may_enter=False)

    def find_permission(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.may_enter else MISSING), state

    def create_inside(self, state: Realm) -> tuple[Outcome, Realm]:
        if not state.has_host:
            return MISSING, state
        return (SAME if state.has_stream else NEW), state._replace(has_stream=True)

    def delete_inside(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.has_stream else MISSING), state._replace(has_stream=False)
