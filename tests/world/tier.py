"""The tier: an object store, a server that only reads, machines that are lost, and old ones.

The server of the world has a tier whose segments, local limits and cache are tiny. Beside it is one
that only reads, with clients of its own. The store fails in all its ways. Now and then the machine
is lost and a new one restored from the store; the old one may go on, or be started again.
"""

import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio

from clients import Client, Message, NoOffset, StreamError
from segments.store.cluster import Root, encode_root
from tests.support.fake_store import Kept
from tests.support.server import Harness
from tests.world.box import Box
from tests.world.lives import LIVES, Lives
from tests.world.messages import SQL, STREAM, Messages, has, message_of, seen_of
from tests.world.store import CLUSTER, WAL, Manifest, Objects, read_cluster
from tests.world.stored import LASTS, SharedStore
from tests.world.witness import Sent
from tests.world.witness_tier import FENCED_SECONDS, Taken, TierWitness
from tests.world.world import Program, World

_GROUP = "g"
_ALL_BYTES = "1000000000"
_READER, _OLD = "reader", "old"
_READER_URI, _OLD_URI = (f"rabbitmq-stream://guest:guest@{name}:5552/" for name in (_READER, _OLD))
_CONFIRM = "stream-confirm"
_HOW_CONFIRMED = ("local", "local", "server", "declared", "switched")  # what says: in the store
_INTERVALS_MS = (1, 20, 200, 2_000)
_HELD_SECONDS = 35.0  # until a server asks a store again that had failed, and is answered
_BEGINS_SECONDS = 15.0  # in which a server reads what its store has to follow its disk
_DELETED_SECONDS = 30.0  # after which a new machine knows that a stream was deleted
_MOST_BRIEF = 5  # streams
_ANSWERED = 1  # second after which a server knows what the store has done
_SOON = 0.1  # seconds in which a server hears that somebody has gone
_MISSING = (0.1, 1, 10)  # seconds: objects that are missing for half a minute are lost
_OLD_LIVES = (1, 10, 80)  # seconds that an old server goes on
_CACHES = (0, 3_000, 1 << 20)
_PATIENCE = 150.0  # seconds that the tier may take for what must come to an end
_LOCAL = ("0", "0", "3000", "1000000")


_ANOTHER = Root(tier="f" * 16, revision=9, uid="f" * 16, size=0, crc=0)


def _epoch_of(objects: Objects) -> int:
    cluster = read_cluster(objects)
    return 0 if cluster is None else int(cluster["epoch"])


class Tier:
    """A part of the world: see above."""

    is_kept = False

    def __init__(self, world: World) -> None:
        self._world = world
        chance = world.chance_of("tier")
        self.told = TierWitness(world.witness)
        self._chance = chance
        self._settings: dict[str, Any] = {
            "tier_roll_seconds": chance.choice((1, 4, 20)),
            "tier_delete_delay_seconds": chance.choice((0, 0, 3)),
        }
        confirming = world.chance_of("confirm")
        self._how_confirmed = confirming.choice(_HOW_CONFIRMED)
        self._settings["confirm_interval_ms"] = confirming.choice(_INTERVALS_MS)
        self._is_folder = not self._confirms_in_store or confirming.random() < 0.6
        names = ("", _READER, _OLD)
        self._shared = SharedStore(world, names, confirms=self._confirms_in_store)
        self._shared.wrote |= {_READER: self._reader_wrote, _OLD: self._old_wrote}
        self._shared.calmed = self._calmed
        self.store = self._shared.store
        self._deleted_at: dict[str, float] = {}
        self._loses = chance.random() < 0.15  # objects: then nobody needs those but this server
        self._has_reader = chance.random() < 0.7 and not self._loses
        self._replaced_at: float | None = None  # when another machine took over
        self._began_at = 0.0
        self._left: set[str] = set()  # of streams whose deletion could not be written down
        self._old_life = 0
        self._messages = next((part for part in world.parts if isinstance(part, Messages)), None)
        self._lives = Lives(world, self.told.reads, **{"stream-local-max-length-bytes": "0"})
        kind = "file:///bucket" if self._is_folder else "s3://bucket"
        for name in names:
            self._shared.lead_to(name, kind)
            box = world.boxes[name]
            box.settings |= self._settings
            box.may_refuse = partial(self._may_refuse, box)
            if name != _READER and self._how_confirmed == "server":
                box.settings["confirm"] = "store"
        world.boxes[""].left = self._cut_lines
        world.boxes[_READER].settings["read_only"] = True
        world.began.append(self._began)
        world.keeps_confirms = self._keeps_confirms
        world.holds_streams = self._holds_streams

    @property
    def _confirms_in_store(self) -> bool:
        """Streams are confirmed by the store, at times at least."""
        return self._how_confirmed != "local"

    def _keeps_confirms(self) -> bool:
        is_early = trio.current_time() - self._began_at < _BEGINS_SECONDS
        return self._confirms_in_store and (is_early or self._was_troubled)

    def _holds_streams(self) -> bool:
        """Streams that say nothing of it are confirmed by the store, which is or was in trouble."""
        is_troubled = trio.current_time() - self.store.troubled_at < _HELD_SECONDS
        return self._how_confirmed == "server" and (is_troubled or not self.store.is_calm)

    def _cut_lines(self) -> None:
        if self._world.witness.flushes != "always":
            self.told.offset = None  # it may be lost with the power, on this machine
        self._shared.cut_lines("")

    def _may_refuse(self, box: Box) -> bool:
        """The store was away when it was needed for a start."""
        return bool(box.settings.keys() & {"restore", "read_only"}) and self._was_troubled

    @property
    def _was_troubled(self) -> bool:
        """Something is wrong with the store, or was until a moment ago."""
        is_troubled = trio.current_time() - self.store.troubled_at < 2 * FENCED_SECONDS
        return not self.store.is_calm or is_troubled

    def _began(self, server: Harness) -> None:
        server.server.broker.fetcher.cache.max_bytes = self._chance.choice(_CACHES)
        box = self._world.box
        if server.data == box.machine.data:
            self._began_at = trio.current_time()
        if self.store.objects is self.store.right:
            self.store.past.append(dict(self.store.right))
        if server.data == box.machine.data and box.settings.pop("restore", False):
            self._replaced_at = trio.current_time()
            self._world.note("restored")
            cluster, found = read_cluster(self.store.right), self.store.manifests().get(STREAM)
            epoch = 0 if cluster is None else cluster["epoch"]
            left = (0, epoch << 40) if found is None else (found.next, found.head["goes_on"])
            self._world.witness.left.append(left)

    # -- what is written into the store

    def _reader_wrote(self, name: str, key: str) -> None:
        self.told.written.append(f"{key} ({name})")

    def _old_wrote(self, name: str, key: str) -> None:
        """An old server may leave objects that nothing names, and remove what it had let go of."""
        if self._replaced_at is None or self.store.objects is not self.store.right:
            return
        manifests = self.store.manifests().values()
        counts = {CLUSTER} | {f"{one.folder}/manifest" for one in manifests}
        if name != "delete" and key in counts:
            self.told.changed.append(f"{key} ({name})")

    # -- the part

    async def prepare(self) -> None:
        """Segments leave the disk soon, and the store knows which streams there are."""
        world = self._world

        async def work(client: Client) -> None:
            if self._messages is not None:
                # What limits would remove before it is stored, no reader ever sees.
                limits = {"stream-local-max-length-bytes": "0", "max-length-bytes": _ALL_BYTES}
                limits |= {_CONFIRM: "store"} if self._how_confirmed == "declared" else {}
                await client.set_arguments(STREAM, limits)
                await client.register_selector(STREAM, _GROUP, sql=SQL)
            await client.tier_report("tier.upload", seconds="60")

        await world.repeat("prepare", work)
        if self._how_confirmed in ("server", "declared"):
            world.witness.confirm_in_store(0)
        if self._has_reader:
            world.nursery.start_soon(world.boxes[_READER].live)

    def programs(self) -> dict[str, Program]:
        found: dict[str, Program] = {"lives": self._lives.live, "upload": self._upload}
        found["brief"] = self._be_brief
        found["read t"] = partial(self._lives.read, "read t", "")
        if self._messages is not None:
            both, group = has(kind=2, tone=1), partial(self._messages.follow, group=_GROUP)
            found["group"] = partial(group, "group", both)
        if not self._has_reader:
            return found
        found["reader t"] = partial(self._lives.read, "reader t", _READER_URI, is_at_once=False)
        found["refused"] = self._is_refused
        if self._messages is not None:
            follow = partial(self._messages.follow, uri=_READER_URI)
            one, both = has(kind=1), has(kind=2, tone=1)
            k1 = {"filter_values": ["k1"], "filter_value": "kind"}
            found |= {
                "reader all": partial(follow, "reader all", lambda _: True, keeps_itself=True),
                "reader stored": partial(follow, "reader stored", lambda _: True),
                "reader k1": partial(follow, "reader k1", one, keeps_itself=True, **k1),
                "reader sql": partial(follow, "reader sql", both, sql=SQL),
                "reader group": partial(
                    follow, "reader group", both, keeps_itself=True, group=_GROUP
                ),
                "reader search": self._search,
            }
        return found

    def harms(self) -> dict[str, Program]:
        found: dict[str, Program] = {
            **self._shared.harms(),
            "objects missing": self._hide,
            "old manifest": self._age,
            "old listings": self._freeze,
            "no cache": self._remove_cache,
            "tier settings": self._set,
            "selector": self._change_selector,
            "gc": self._collect,
        }
        if self._is_folder:
            found |= {"store unmounted": self._unmount, "another store": self._mount_another}
        if self._confirms_in_store:
            found["slot damaged"] = self._damage
        if self._how_confirmed == "switched":
            found["confirm"] = self._switch
        if self._loses:
            found["objects lost"] = self._lose_objects
        elif not any(part.is_kept for part in self._world.parts):
            found |= {"wipe": self._wipe, "take over": self._take_over}
        if self._has_reader:
            found |= {"kill reader": self._kill_reader, "reader: no cache": self._remove_its_cache}
        return found

    async def finish(self) -> None:
        """The store answers, and no old server is left; what it has confirmed survives the last."""
        self._shared.calm()
        self.store.land(1)
        is_safe = self._confirms_in_store  # or the last messages may be lost, rightly
        if self._how_confirmed == "switched":
            is_safe = self._world.witness.in_store_since is not None
        if is_safe and "wipe" in self.harms():
            await self._wipe()
        await self._wait_for_old()
        self._world.boxes[_OLD].end()
        if self._messages is not None:
            await self._world.repeat("register", self._register)
        while self._lives.is_going_on:
            await trio.sleep(0.1)
        await self._world.repeat("the last life", self._lives.live_on)

    async def _wait_for_old(self) -> None:
        """A server that was replaced goes on until it must know."""
        old = self._world.boxes[_OLD]
        while old.server is not None and (self._seconds_replaced() or 0) < FENCED_SECONDS + 5:
            await trio.sleep(1)

    # -- streams that are deleted

    async def _be_brief(self) -> None:
        """Streams that are deleted for good."""
        world, chance, number = self._world, self._world.chance_of("brief"), 0

        async def work(client: Client) -> None:
            nonlocal number
            while not world.is_ending and number < _MOST_BRIEF:
                number += 1
                name = f"brief {number}"
                await client.create(name)
                async with client.producer(name) as producer:
                    await producer.send(Message(b"brief"))
                    await producer.flush()
                if chance.random() < 0.7:
                    await client.tier_report("tier.upload", seconds="5", **{"stream.0": name})
                await client.delete(name)
                self.told.deleted.add(name)
                self._deleted_at[name] = trio.current_time()
                await trio.sleep(chance.choice((1, 10)))

        await world.repeat("brief", work)

    # -- programs

    async def _upload(self) -> None:
        """See that everything is in the tier, now and then; what was confirmed is safe then."""
        world, chance = self._world, self._world.chance_of("upload")

        async def work(client: Client) -> None:
            while not world.is_ending:
                await trio.sleep(chance.choice((0.5, 3, 8)))
                confirmed = set(world.witness.confirmed) - world.witness.lost
                offset = await self._store_offset(client) if self._messages is not None else None
                await client.tier_report("tier.upload", seconds="20")
                world.note("uploaded")
                world.witness.uploaded |= confirmed
                self.told.offset = offset or self.told.offset

        await world.repeat("upload", work)

    async def _store_offset(self, client: Client) -> int | None:
        everybody = self._world.witness.followers.values()
        seen = max((one.offset for follower in everybody for one in follower.seen), default=0)
        end = (await client.stats(STREAM))["committed_offset"]
        if not 0 < seen <= end:
            return None
        await client.set_offset(STREAM, "app", seen)
        return seen

    async def _search(self) -> None:
        """A server that only reads finds what it has delivered."""
        world, chance = self._world, self._world.chance_of("reader search")
        follower = world.witness.followers.get("reader all")

        async def work(client: Client) -> None:
            while not world.is_ending:
                await trio.sleep(chance.choice((0.4, 2)))
                if follower is None or not follower.seen:
                    continue
                seen = chance.choice(follower.seen)
                finding = client.find(STREAM, key=str(seen.message))
                results = [seen_of(received) async for received in finding]
                is_lost = seen.message in world.witness.lost or world.witness.asked
                if finding.is_all and seen not in results and not is_lost:
                    self.told.missed.append(f"{seen} was delivered, and found at {results}")

        await world.repeat("reader search", work, uri=_READER_URI)

    async def _is_refused(self) -> None:
        """A server that only reads is asked for changes."""
        world, chance = self._world, self._world.chance_of("refused")

        async def publish(client: Client) -> None:
            async with client.producer(STREAM) as producer:
                await producer.send(message_of(Sent("refused", 1)))

        changes: dict[str, Callable[[Client], Awaitable[object]]] = {
            "create a stream": lambda client: client.create("refused"),
            "delete a stream": lambda client: client.delete(LIVES),
            "truncate a stream": lambda client: client.truncate(STREAM, before=1),
            "change a stream": lambda c: c.set_arguments(STREAM, {"max-age": "1D"}),
            "remove orphans": lambda c: c.tier_report("tier.gc", dry_run="false"),
            "publish": publish,
        }

        async def work(client: Client) -> None:
            if (told := client.server_properties).get("read_only") != "true":
                self.told.untold.append(str(told))
            while not world.is_ending:
                await trio.sleep(chance.choice((1, 5)))
                what = chance.choice(list(changes))
                with suppress(StreamError):
                    await changes[what](client)
                    self.told.accepted.append(what)

        await world.repeat("refused", work, uri=_READER_URI)

    # -- what goes wrong with the store

    def _calmed(self, is_fine: bool) -> None:
        if not is_fine:
            self.told.begun.append(CLUSTER)

    async def _unmount(self) -> None:
        if read_cluster(self.store.right) is not None:
            self.store.mount({})
            self._shared.for_a_while(self._world.chance.choice(LASTS))

    async def _mount_another(self) -> None:
        """The place of another tier, or of this one as it was earlier.

        Who has none yet takes what there is: a new machine, or a server that only reads.
        """
        store, chance, reader = self.store, self._world.chance, self._world.boxes[_READER]
        if "restore" in self._world.box.settings or (self._has_reader and reader.server is None):
            return
        past = [one for one in store.past if _epoch_of(one) < _epoch_of(store.right)]
        if past and chance.random() < 0.5:
            store.mount(dict(chance.choice(past)))
        else:
            store.mount({CLUSTER: Kept(encode_root(_ANOTHER), "another", 0)})
        self._shared.for_a_while(chance.choice(LASTS))

    async def _hide(self) -> None:
        """Objects of segments are missing: some, or some of one kind."""
        chance = self._world.chance
        suffix = chance.choice((".segment", ".index", ".filter", ".keys", ".tracking", ""))
        keys = [key for key in self.store.objects if suffix in key and chance.random() < 0.5]
        keys = [key for key in keys if key.rpartition("/")[2].count(".") == 3]  # of segments
        if self.store.objects is self.store.right:
            self.store.hide(sorted(keys))
            self._shared.for_a_while(chance.choice(_MISSING))

    async def _age(self) -> None:
        """The manifest of a stream is missing, or an older one: not all of the store is there."""
        store, chance, reader = self.store, self._world.chance, self._world.boxes[_READER]
        if "restore" in self._world.box.settings or (self._has_reader and reader.server is None):
            return
        found = store.manifests().get(STREAM)
        if found is None or not store.is_calm:
            return
        key = f"{found.folder}/manifest"
        earlier = (one.get(key) for one in store.past)
        older = [one for one in earlier if one is not None and one is not store.right[key]]
        store.age(key, chance.choice([None, *older]))
        self._shared.for_a_while(chance.choice(_MISSING))

    async def _damage(self) -> None:
        """A slot cannot be read, until it is calm: what comes behind it counts all the same."""
        store, chance = self.store, self._world.chance
        keys = sorted(key for key in store.right if key.startswith(WAL))
        if not keys or not store.is_calm or "restore" in self._world.box.settings:
            return
        key = chance.choice(keys)
        content = bytearray(store.right[key].content)
        content[chance.randrange(len(content))] ^= 1
        store.age(key, Kept(bytes(content), "damaged", 0))
        self._shared.for_a_while(chance.choice(_MISSING))

    async def _lose_objects(self) -> None:
        """The store loses objects of segments whose files are there, while the server is down."""
        world, chance, store = self._world, self._world.chance, self.store
        if store.objects is not store.right or not store.has_all_manifests:
            return
        world.end_process()
        for name, manifest in store.manifests().items():
            folder = world.box.machine.data / "streams" / "%2F" / name
            local = {path.name.partition(".")[0] for path in folder.glob("*.segment")}
            for key in sorted(manifest.sizes(".segment", ".index", ".filter")):
                is_local = key.rpartition("/")[2].partition(".")[0] in local
                if is_local and chance.random() < 0.5 and store.right.pop(key, None):
                    store.lost.add(key)

    async def _freeze(self) -> None:
        if "restore" in self._world.box.settings:
            return  # it has to see what there is
        self.store.freeze_listings()
        self._shared.for_a_while(self._world.chance.choice(LASTS))

    # -- what goes wrong with machines

    async def _wipe(self) -> None:
        """The machine is lost, and perhaps the next one, before much is stored."""
        chance = Random(self._world.chance.random())
        for pause in chance.choices((0.1, 1, 3), k=chance.choice((1, 1, 2))):
            self._lose()
            await self._world.box.comes_up()
            await trio.sleep(pause)

    def _lose(self) -> Path | None:
        """The machine is lost, if the store has anything of it; the folder that it had."""
        world, box = self._world, self._world.box
        offset = self.told.offset
        is_another = self.store.objects is not self.store.right and self.store.objects
        if read_cluster(self.store.right) is None or is_another:
            return None
        if not self.store.has_all_manifests or not box.wipe():
            return None
        self.told.deleted = {name for name in self.told.deleted if self._is_known_deleted(name)}
        self.told.offset = offset
        box.settings["restore"] = True
        self.store.thaw_listings()
        manifests = self.store.manifests()
        self._lives.lose()
        if self._messages is not None:
            found = manifests.get(STREAM)
            first, following = (0, 0) if found is None else (found.first, found.next)
            world.witness.lose_machine(first, following)
            named = [] if found is None else found.segments
            self.told.restored += [(one["base"], one["next"]) for one in named]
        return box.machine.left

    def _is_known_deleted(self, name: str) -> bool:
        """Its deletion has reached the store."""
        at, store = self._deleted_at[name], self.store
        is_long_ago = at + _DELETED_SECONDS < trio.current_time()
        return is_long_ago and store.is_calm and store.troubled_at < at

    async def _take_over(self) -> None:
        """A new machine, and the old one goes on."""
        old = self._world.boxes[_OLD]
        if old.server is not None or old.is_over or self._world.is_ending:
            return
        left = self._lose()
        if left is None:
            return
        self._old_life += 1
        self._replaced_at = None
        old.machine.wipe()
        shutil.copytree(left, old.machine.data, dirs_exist_ok=True)
        chance = Random(self._world.chance.random())
        self._world.nursery.start_soon(self._go_on, old, self._old_life, chance)

    async def _go_on(self, old: Box, number: int, chance: Random) -> None:
        """The life of an old server."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(old.live)
            nursery.start_soon(self._use_old, f"old {number}", chance)
            with trio.move_on_after(chance.choice(_OLD_LIVES)):
                while not old.is_over:
                    await trio.sleep(0.5)
            old.end()
            nursery.cancel_scope.cancel()
        old.is_over = self._world.is_ending

    async def _use_old(self, who: str, chance: Random) -> None:
        """Publish to it, and read from it: nothing of that is mixed up with the new one."""
        witness, number = self._world.witness, 0

        async def work(client: Client) -> None:
            nonlocal number
            async with client.producer(STREAM) as producer:
                while True:
                    number += 1
                    sent = Sent(who, number)
                    witness.sent[sent] = witness.sent.get(sent, trio.current_time())
                    began, is_replaced = self._seconds_replaced(), self._replaced_at is not None
                    await producer.send(message_of(sent))
                    await producer.flush()
                    if is_replaced and witness.is_all_in_store:
                        self.told.confirmed_late.append(str(sent))
                    if began is not None:
                        self.told.taken.append(Taken(began, f"{sent} was confirmed"))
                    await trio.sleep(chance.choice((0.1, 2)))

        async def read(client: Client) -> None:
            async with client.consumer(STREAM, offset="first") as consumer:
                async for received in consumer:
                    witness.elsewhere.append(seen_of(received))

        async with trio.open_nursery() as nursery:
            ask = partial(self._ask_old, chance)
            nursery.start_soon(partial(self._world.repeat, f"{who} asks", ask, uri=_OLD_URI))
            for name, one in ((who, work), (f"{who} reads", read)):
                if self._messages is not None:
                    nursery.start_soon(partial(self._world.repeat, name, one, uri=_OLD_URI))

    async def _ask_old(self, chance: Random, client: Client) -> None:
        """What it says of the tier: once it is another server's, nothing else."""
        states = [""]
        while True:
            status, *_ = await client.tier_report("tier.status")
            if states[-1] != status["state"]:
                states.append(status["state"])
            if "fenced" in states[:-1]:
                self.told.changed.append(f"what it says of the tier: {states}")
            await trio.sleep(chance.choice((0.1, 1)))

    def _seconds_replaced(self) -> float | None:
        """For how long another server has had the tier, and the store could say so."""
        if self._replaced_at is None or not self.store.is_calm:
            return None
        return trio.current_time() - max(self._replaced_at, self.store.troubled_at)

    async def _remove_cache(self) -> None:
        shutil.rmtree(self._world.box.machine.data / "tier-cache", ignore_errors=True)

    async def _kill_reader(self) -> None:
        if not (self.store.objects and self.store.objects is not self.store.right):
            self._world.boxes[_READER].kill()

    async def _remove_its_cache(self) -> None:
        folder = self._world.boxes[_READER].machine.data
        shutil.rmtree(folder / "tier-cache", ignore_errors=True)

    # -- changes

    async def _set(self) -> None:
        chance = self._world.chance
        name = chance.choice((STREAM, LIVES))
        value = {"stream-local-max-length-bytes": chance.choice(_LOCAL)}
        await self._world.attempt("set", lambda client: client.set_arguments(name, value))

    async def _switch(self) -> None:
        """Messages are confirmed by the store from now on, or by the machine."""
        witness, value = self._world.witness, self._world.chance.choice(("store", "store", "local"))

        async def work(client: Client) -> None:
            await client.set_arguments(STREAM, {_CONFIRM: value})
            if value == "store" and witness.in_store_since is None:
                witness.confirm_in_store(trio.current_time())

        if value == "local":
            witness.confirm_in_store(None)
        await self._world.attempt("switch", work)

    async def _change_selector(self) -> None:
        """It is removed and registered again, when nobody uses it on that server."""
        pause = self._world.chance.choice((0, 0.5, 3))

        async def work(client: Client) -> None:
            if using := self._world.scopes.get("group"):
                using.cancel()
                await trio.sleep(_SOON)
            await client.unregister_selector(STREAM, _GROUP)
            await trio.sleep(pause)
            await client.register_selector(STREAM, _GROUP, sql=SQL)

        await self._world.attempt("selector", work, retry_seconds=0)

    async def _register(self, client: Client) -> None:
        await client.register_selector(STREAM, _GROUP, sql=SQL)

    async def _collect(self) -> None:
        async def work(client: Client) -> None:
            await client.tier_report("tier.gc", dry_run="false")

        await self._world.attempt("gc", work, retry_seconds=0)

    # -- the end

    async def settle(self) -> None:
        """Everything is to be in the tier; compare what is said with what is there."""
        told = self.told
        await self._within("the last upload", self._upload_all)
        await self._within("the last reports", self._report)
        if self._has_reader and self._messages is not None:
            await self._within("the last look of a server that only reads", self._read_all)
        told.unstored, told.removed = self.store.unstored, self.store.removed
        told.lost = self.store.lost
        self._world.witness.faults += told.judge()

    async def _within(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(_PATIENCE) as limit:
            await work()
        if limit.cancelled_caught:
            last = "; ".join(self._world.events[-3:])
            self.told.hangs.append(f"{what} did not come to an end: {last}")

    async def _upload_all(self) -> None:
        async def work(client: Client) -> None:
            await client.tier_report("tier.upload", seconds="60")

        await self._world.repeat("last upload", work)

    async def _report(self) -> None:
        async def work(client: Client) -> None:
            told = self.told
            await client.tier_report("tier.gc", dry_run="false")
            for name in self.store.manifests():
                if self._world.was_wrong and not await client.exists(name):
                    self._left.add(name)
                    continue
                await client.stats(name)  # one that could not be restored is restored then
                _, *faults = await client.tier_report("tier.verify", stream=name)
                told.bad += [f"{one['key']}: {one['sentence']}" for one in faults]
            before = None
            while before != told.named:  # streams that keep a second go on losing messages
                before = self._named()
                await trio.sleep(_ANSWERED)
                told.status, *told.rows = await client.tier_report("tier.status")
                told.named = self._named()
            logs = None
            # A slot that was under way behind the end of a log is left when that is shortened.
            while logs != (logs := self._logs()):
                await client.tier_report("tier.gc", dry_run="false")
            self._take_stock()
            if self._messages is not None:
                with suppress(NoOffset):
                    told.has_offset = await client.query_offset(STREAM, "app")

        await trio.sleep(5)  # what is to be removed is
        await self._world.repeat("last reports", work)

    def _logs(self) -> object:
        cluster = read_cluster(self.store.right)
        return None if cluster is None else cluster["wals"]

    def _take_stock(self) -> None:
        manifests, objects = self.store.manifests(), self.store.objects
        left = tuple(f"{one.folder}/" for name, one in manifests.items() if name in self._left)
        self.told.objects = {key: kept for key, kept in objects.items() if not key.startswith(left)}

    def _named(self) -> dict[str, Manifest]:
        return {n: one for n, one in self.store.manifests().items() if n not in self._left}

    async def _read_all(self) -> None:
        told = self.told

        async def work(client: Client) -> None:
            async with client.consumer(STREAM, offset="first", until_end=True) as consumer:
                told.log = [seen_of(received) async for received in consumer]
            status, *_ = await client.tier_report("tier.status")
            told.looked = float(status["looked_seconds"] or 0)

        while told.log is None or told.log != told.messages.log:
            await self._world.repeat("reader: last look", work, uri=_READER_URI)
            await trio.sleep(10)
