"""Somebody who sends what is small and costs much, and a watch of the loop that all share.

"Nobody waits for another's input": no step of the server takes the loop for long, whatever a peer
has sent. `tests/test_turns.py` tries each kind of request at its limits; here they come while other
things go on, and break.
"""

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

import trio

from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import method_frame
from streamd.wire.amqp091.values import Field
from streamd.wire.stream import commands as c
from tests.support.amqp import FIRST, STREAM, declare
from tests.world.doors import AmqpDoor, Broken, Door, Gone, HttpDoor, StreamDoor, managed
from tests.world.world import World

_LOOK_SECONDS = 0.05  # of the clock on the wall, between two looks at that of the processor
_HELD_SECONDS = 1.0  # of a processor; what has no price takes many, a busy machine some more
_OURS = ("tests.world.world", "tests.world.run")  # tasks of the world, which wait for nobody
_PAUSES = (0.1, 0.5, 2)
_ITEMS = 40_000  # of a table, one byte each
_SECTIONS = 150_000  # of a message
_FIELDS = 120_000  # of definitions
_NAME = "costly"


class Watch(trio.abc.Instrument):
    """See the module.

    The clock on the wall is read with each step, that of the processor, which takes twenty times as
    long, only now and then: a step takes no more of it than of the other.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._began = (0.0, 0.0, 0)
        self._looked_at, self._processor = 0.0, thread_time()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        now, world = perf_counter(), self._world
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at, self._processor = now, thread_time()
        self._began = now, world.beside_seconds, world.box.machine.num_lives

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        began_at, beside, lives = self._began
        if perf_counter() - began_at <= _HELD_SECONDS:
            return
        world = self._world
        held = thread_time() - self._processor - (world.beside_seconds - beside)
        is_ours = task.name.startswith(_OURS)
        if held > _HELD_SECONDS and lives == world.box.machine.num_lives and not is_ours:
            world.witness.faults.append(f"nobody holds the loop: {task.name} {held:.2f} s")


class Costly:
    """See the module."""

    def __init__(self, world: World, may_fail: Callable[[], bool]) -> None:
        self._world = world
        self._may_fail = may_fail

    async def run(self) -> None:
        """Send one thing after the other."""
        world = self._world
        chance = world.chance_of(_NAME)
        watch = Watch(world)
        kinds = (AmqpDoor, HttpDoor, StreamDoor)
        doors: dict[type[Door], Any] = {kind: kind(world.box, lambda: True) for kind in kinds}
        deeds = (
            (AmqpDoor, self._send_tables),
            (StreamDoor, self._publish_sections),
            (AmqpDoor, self._read_sections),
            (StreamDoor, self._permit_lookahead),
            (HttpDoor, self._send_definitions),
        )
        trio.lowlevel.add_instrument(watch)
        while not world.is_ending:
            await trio.sleep(chance.choice(_PAUSES))
            kind, deed = chance.choice(deeds)
            try:
                with trio.move_on_after(5):
                    await world.guarded(_NAME, lambda door=doors[kind], do=deed: do(door))
            except* (Gone, Broken, trio.EndOfChannel, trio.BrokenResourceError):
                pass
            except* (trio.ClosedResourceError, AssertionError):
                pass
            doors[kind].close()
        trio.lowlevel.remove_instrument(watch)

    async def _send_tables(self, door: AmqpDoor) -> None:
        """Arrays of one-byte values, several requests at once."""
        await door.open()
        await door.peer.send_bytes(_tables() * 6)
        await door.send((None, m.QueueDeclareOk))

    async def _publish_sections(self, door: StreamDoor) -> None:
        """A message of many sections, of which a body is made."""
        await door.send((c.Create, _NAME, ()))
        await door.send((c.DeclarePublisher, 1, "", _NAME))
        await door.peer.publish([b"\x00\x53\x75\xa0\x00" * _SECTIONS])
        await door.peer.next()

    async def _read_sections(self, door: AmqpDoor) -> None:
        asked = m.BasicConsume(0, _NAME, "", False, False, False, False, FIRST)
        await door.send((m.BasicQos(0, 2, False), m.BasicQosOk))
        await door.send((asked, m.BasicConsumeOk))
        await door.peer.next()

    async def _permit_lookahead(self, door: StreamDoor) -> None:
        """A pattern that takes long, for names that are made for it."""
        await door.send(managed("user.add", name=_NAME, password=_NAME))
        words = dict.fromkeys(("configure", "write", "read"), "^(?!(.?.?){60}y)")
        await door.send(managed("permission.set", user=_NAME, **words))
        other = StreamDoor(self._world.box, lambda: True, (_NAME, _NAME))
        try:
            await other.send((c.Metadata, tuple("x" * 200 + str(n) for n in range(100))))
        finally:
            other.close()

    async def _send_definitions(self, door: HttpDoor) -> None:
        body = b'{"policies": [{' + b'"a":1,' * _FIELDS + b'"a":1}]}'
        await door.send(("POST", "definitions", body))


def _tables() -> bytes:
    items = Field("A", [Field("t", True)] * _ITEMS)
    return method_frame(1, declare(_NAME, STREAM | {"x-items": items}))
