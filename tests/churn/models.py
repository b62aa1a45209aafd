"""What clients may be answered: state machines of things that several of them know by name."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.churn.history import CONFLICT, EXISTS, MISSING, NEW, NONE, OK, SAME, Call, Outcome

_Steps = Iterable[tuple[Outcome, "object"]]


class StreamModel:
    """One stream: its state is the name of the arguments it has, None while there is none."""

    initial: str | None = None
    reads = frozenset(("find", "arguments"))

    def step(self, state: str | None, call: Call) -> _Steps:
        match call.kind, call.arguments:
            case "create", (wanted,):
                yield _created(state, wanted, OK, EXISTS)
            case "declare", (wanted,):
                yield _created(state, wanted, OK, OK)
            case "put", (wanted,):
                yield _created(state, wanted, NEW, SAME)
            case "delete", ():
                yield (MISSING if state is None else OK), None
            case "remove", ():
                yield OK, None
            case "find", ():
                yield (MISSING if state is None else OK), state
            case "arguments", ():
                yield (MISSING if state is None else (OK, state)), state


def _created(
    state: str | None, wanted: str, new: Outcome, same: Outcome
) -> tuple[Outcome, str | None]:
    if state is None:
        return new, wanted
    return (same if state == wanted else CONFLICT), state


class Shelf(NamedTuple):
    """What is kept beside the messages of a stream.

    Attributes:
        offset: that a consumer has stored, None for none.
        keys: the properties whose values are keys.
    """

    offset: int | None = None
    keys: str = ""


class ShelfModel:
    """A stream without messages; its state is a Shelf, None while there is none."""

    initial: Shelf | None = None
    reads = frozenset(("stored", "keys"))

    def step(self, state: Shelf | None, call: Call) -> _Steps:
        if call.kind == "build":
            yield (OK, Shelf()) if state is None else (EXISTS, state)
        elif state is None:
            yield MISSING, None
        elif call.kind == "tear":
            yield OK, None
        else:
            step: Callable[..., tuple[Outcome, Shelf]] = getattr(self, f"_{call.kind}")
            yield step(state, *call.arguments)

    def _store(self, state: Shelf, offset: int) -> tuple[Outcome, Shelf]:
        return OK, state._replace(offset=offset)

    def _forget(self, state: Shelf) -> tuple[Outcome, Shelf]:
        return (NONE if state.offset is None else OK), state._replace(offset=None)

    def _forget_it(self, state: Shelf) -> tuple[Outcome, Shelf]:
        """As HTTP does it: there is no telling what is missing."""
        return (MISSING if state.offset is None else OK), state._replace(offset=None)

    def _stored(self, state: Shelf) -> tuple[Outcome, Shelf]:
        return (OK, state.offset), state

    def _set_keys(self, state: Shelf, keys: str) -> tuple[Outcome, Shelf]:
        return OK, state._replace(keys=keys)

    def _keys(self, state: Shelf) -> tuple[Outcome, Shelf]:
        return (OK, state.keys), state


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


class RoutingModel:
    """An exchange or super stream with its streams and bindings."""

    initial = Routes()
    reads = frozenset(("partitions", "route", "bound"))

    def step(self, state: Routes, call: Call) -> _Steps:
        if call.kind == "drop_binding":
            yield from self._drop_binding(state, *call.arguments)
            return
        step: Callable[..., tuple[Outcome, Routes]] = getattr(self, f"_{call.kind}")
        yield step(state, *call.arguments)

    # -- super streams

    def _make_super(
        self, state: Routes, keys: tuple[tuple[str, str], ...]
    ) -> tuple[Outcome, Routes]:
        streams = frozenset(stream for _, stream in keys)
        if state.kind is not None or state.streams & streams:
            return EXISTS, state
        return OK, Routes(SUPER, state.streams | streams, keys)

    def _delete_super(self, state: Routes) -> tuple[Outcome, Routes]:
        if state.kind != SUPER:
            return MISSING, state
        gone = {stream for _, stream in state.bindings}
        return OK, Routes(None, state.streams - gone)

    def _partitions(self, state: Routes) -> tuple[Outcome, Routes]:
        if state.kind != SUPER:
            return MISSING, state
        return (OK, tuple(stream for _, stream in state.bindings)), state

    def _route(self, state: Routes, key: str) -> tuple[Outcome, Routes]:
        if state.kind != SUPER:
            return MISSING, state
        return (OK, tuple(stream for found, stream in state.bindings if found == key)), state

    # -- exchanges

    def _declare_exchange(self, state: Routes, kind: str) -> tuple[Outcome, Routes]:
        if state.kind is None:
            return OK, state._replace(kind=kind)
        return (OK if state.kind == kind else CONFLICT), state

    def _put_exchange(self, state: Routes, kind: str) -> tuple[Outcome, Routes]:
        if state.kind is None:
            return NEW, state._replace(kind=kind)
        return (SAME if state.kind == kind else CONFLICT), state

    def _remove_exchange(self, state: Routes) -> tuple[Outcome, Routes]:
        return OK, Routes(None, state.streams)

    def _remove_unused(self, state: Routes) -> tuple[Outcome, Routes]:
        return (CONFLICT, state) if state.bindings else (OK, Routes(None, state.streams))

    # -- streams and bindings

    def _create_stream(self, state: Routes, name: str) -> tuple[Outcome, Routes]:
        if name in state.streams:
            return EXISTS, state
        return OK, state._replace(streams=state.streams | {name})

    def _delete_stream(self, state: Routes, name: str) -> tuple[Outcome, Routes]:
        if name not in state.streams:
            return MISSING, state
        bindings = tuple(item for item in state.bindings if item[1] != name)
        return OK, Routes(state.kind, state.streams - {name}, bindings)

    def _remove_stream(self, state: Routes, name: str) -> tuple[Outcome, Routes]:
        return OK, self._delete_stream(state, name)[1]

    def _bind(self, state: Routes, key: str, stream: str) -> tuple[Outcome, Routes]:
        if state.kind is None or stream not in state.streams:
            return MISSING, state
        if (key, stream) in state.bindings:
            return OK, state
        bindings = (*state.bindings, (key, stream))
        if state.kind != SUPER:  # only partitions have an order
            bindings = tuple(sorted(bindings))
        return OK, state._replace(bindings=bindings)

    def _unbind(self, state: Routes, key: str, stream: str) -> tuple[Outcome, Routes]:
        if state.kind is None or stream not in state.streams:
            return MISSING, state
        bindings = tuple(item for item in state.bindings if item != (key, stream))
        return OK, state._replace(bindings=bindings)

    def _drop_binding(self, state: Routes, key: str, stream: str) -> _Steps:
        """As HTTP does it: looks for the binding, then removes it if it is still there."""
        if (key, stream) not in state.bindings:
            yield MISSING, state
        yield self._unbind(state, key, stream)

    def _bound(self, state: Routes) -> tuple[Outcome, Routes]:
        return (OK, tuple(sorted(state.bindings))), state


class Realm(NamedTuple):
    """A virtual host, a user, what it may do there, and a stream there."""

    has_host: bool = False
    has_user: bool = False
    may_enter: bool = False
    has_stream: bool = False


class RealmModel:
    """A virtual host with a user and a stream; the owner of the virtual host may always enter."""

    initial = Realm()
    reads = frozenset(("enter_host", "find_user", "find_permission"))

    def step(self, state: Realm, call: Call) -> _Steps:
        step: Callable[..., tuple[Outcome, Realm]] = getattr(self, f"_{call.kind}")
        yield step(state, *call.arguments)

    def _add_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (EXISTS, state) if state.has_host else (OK, state._replace(has_host=True))

    def _put_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (SAME, state) if state.has_host else (NEW, state._replace(has_host=True))

    def _delete_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK, Realm(has_user=state.has_user)) if state.has_host else (MISSING, state)

    def _enter_host(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.has_host else MISSING), state

    def _add_user(self, state: Realm) -> tuple[Outcome, Realm]:
        return (EXISTS, state) if state.has_user else (OK, state._replace(has_user=True))

    def _put_user(self, state: Realm) -> tuple[Outcome, Realm]:
        return (SAME, state) if state.has_user else (NEW, state._replace(has_user=True))

    def _delete_user(self, state: Realm) -> tuple[Outcome, Realm]:
        if not state.has_user:
            return MISSING, state
        return OK, state._replace(has_user=False, may_enter=False)

    def _find_user(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.has_user else MISSING), state

    def _put_permission(self, state: Realm) -> tuple[Outcome, Realm]:
        if not (state.has_host and state.has_user):
            return MISSING, state
        return (SAME if state.may_enter else NEW), state._replace(may_enter=True)

    def _delete_permission(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.may_enter else MISSING), state._replace(may_enter=False)

    def _find_permission(self, state: Realm) -> tuple[Outcome, Realm]:
        return (OK if state.may_enter else MISSING), state

    def _put_inside(self, state: Realm) -> tuple[Outcome, Realm]:
        if not state.has_host:
            return MISSING, state
        return (SAME if state.has_stream else NEW), state._replace(has_stream=True)

    def _delete_inside(self, state: Realm) -> tuple[Outcome, Realm]:
        if not state.has_stream:
            return MISSING, state
        return OK, state._replace(has_stream=False)
