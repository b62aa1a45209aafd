"""Numbers that stand for all below them, over connections that break, with refusals and zero."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock

from clients import (
    Client,
    ConnectionLost,
    Message,
    PartitionsFailed,
    Producer,
    PublishFailed,
    StreamDoesNotExist,
    SuperProducer,
)
from streamd.wire.stream import ResponseCode
from tests.clients.conftest import given_by
from tests.support.client import Disturbance, Network, disturbed
from tests.support.proxy import Cut
from tests.support.server import harness

SECONDS = 10_000  # of virtual time: nothing waits for ever
BEHIND = ResponseCode.PUBLISHER_DOES_NOT_EXIST
STRICT = {"stream-filter-property": "p", "stream-filter-contract": "strict"}

Work: TypeAlias = Callable[[Client], Awaitable[None]]

cuts = st.lists(
    st.builds(Cut, st.none() | st.integers(300, 3_000), st.none() | st.integers(200, 1_200)),
    max_size=4,
)


class Given(NamedTuple):
    """A message that is given to a producer.

    Attributes:
        step: what its number has more than the one before.
        is_sound: it keeps to the stream's contract.
        is_last_of_frame: the producer has nothing more to send for a moment.
    """

    step: int
    is_sound: bool
    is_last_of_frame: bool


def message(number: int) -> Message:
    return Message(b"%d" % number, application_properties={"p": "v"})


class Program:
    """Publishes messages to a stream with a strict contract, however often its connection breaks.

    Attributes:
        given: the numbers that the producer has taken.
        refused: those that it has reported, with their codes.
        num_confirmed: as the producer counts them.
    """

    def __init__(self, name: str, numbers: Sequence[int], messages: Sequence[Given]) -> None:
        self.given: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.num_confirmed = 0
        self._name = name
        self._messages = list(zip(numbers, messages, strict=True))

    async def run(self, client: Client) -> None:
        async with client.producer("s", name=self._name, window=5) as producer:
            try:
                await self._publish(producer)
                await producer.flush()
            except PublishFailed as failed:
                self.refused += failed.refused
                assert producer.num_unconfirmed == 0
            self.num_confirmed = producer.num_confirmed
            if self.refused and self._name:
                with pytest.raises(PublishFailed):
                    await producer.send(b"it takes no more")
            producer._refused.clear()  # it was told

    async def _publish(self, producer: Producer) -> None:
        for number, (_, is_sound, is_last) in self._messages:
            value = "v" if is_sound else "w"
            await producer.send(message(number), publishing_id=number, filter_value=value)
            self.given.append(number)
            if is_last:
                await trio.lowlevel.checkpoint()


async def consume(client: Client, **options: str) -> None:
    async with client.consumer("s", **options):  # type: ignore[arg-type]
        pass


QUESTIONS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "offsets": lambda client: client.offsets("s"),
    "stored offset": lambda client: client.query_offset("s", "c"),
    "selectors": lambda client: client.selectors("s"),
    "users": lambda client: client.manage("user.list"),
    "streams": lambda client: client.describe(),
    "filters": lambda client: client.describe_filters("s"),
    "figures": lambda client: client.stats("s"),
    "existence": lambda client: client.exists("s"),
    "partitions": lambda client: client.partitions("super"),
    "routes": lambda client: client.route("super", "1"),
    "a consumer with a standing selector": lambda client: consume(client, group="g"),
    "a consumer with a selector": lambda client: consume(client, sql="p = 'v'"),
    "a consumer with a stored offset": lambda client: consume(client, offset="stored", name="c"),
}


async def through(network: Network, work: Work) -> None:
    """Run a program; if its first connection breaks while it logs in, run it again."""
    while True:
        try:
            async with network.client() as client:
                await work(client)
        except ConnectionLost:
            continue
        return


async def contents(client: Client, stream: str) -> list[int]:
    async with client.consumer(stream, offset="first", until_end=True) as messages:
        return [int(message.body) async for message in messages]


def run(work: Callable[[Network], Awaitable[None]], folder: Path, cuts: Sequence[Cut] = ()) -> None:
    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch, trio.fail_after(SECONDS):
            async with harness(folder, is_polled=True, flush="os") as server:
                network = Network(server, patch)
                async with network.client() as client:
                    await client.create("s", arguments=STRICT)
                await work(Network(server, patch, cuts))

    trio.run(main, clock=MockClock(autojump_threshold=0))


with_server = given_by(run, "tmp_path", "network")


class TestProducers:
    @given(
        st.sampled_from(["", "p"]),
        st.sampled_from([0, 1, 7]),
        st.lists(st.builds(Given, st.integers(1, 3), st.booleans(), st.booleans()), min_size=1),
        cuts,
    )
    def test_say_of_each_message_what_became_of_it(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        name: str,
        first: int,
        messages: list[Given],
        cuts: list[Cut],
    ) -> None:
        """Confirms, refusals and the answer that says how far it had come are lost at any byte."""
        numbers = list(accumulate([step for step, _, _ in messages[1:]], initial=first))
        sound = [n for n, message in zip(numbers, messages, strict=True) if message.is_sound]
        unsound = sorted(set(numbers) - set(sound))

        async def work(network: Network) -> None:
            program = Program(name, numbers, messages)
            await through(network, program.run)
            network.cuts.clear()
            async with network.client() as client:
                stored = await contents(client, "s")
            refused = [number for number, _ in program.refused]
            if name:
                end = unsound[0] if unsound else numbers[-1] + 1
                assert stored == [number for number in numbers if number < end]
                assert refused == [number for number in program.given if number >= end]
                assert all(code == BEHIND for _, code in program.refused[1:])
            else:
                assert program.given == numbers
                assert list(dict.fromkeys(stored)) == sound
                assert refused == unsound
            assert program.num_confirmed == len(set(stored))
            if name:  # the whole program can be run again, once its messages are right
                again = Program(name, numbers, [sent._replace(is_sound=True) for sent in messages])
                await through(network, again.run)
                assert not again.refused
                async with network.client() as client:
                    assert await contents(client, "s") == numbers

        run(work, tmp_path_factory.mktemp("numbers"), cuts)

    @pytest.mark.parametrize("name", ["", "p"])
    @with_server
    async def test_do_not_take_zero_for_a_confirm(self, network: Network, name: str) -> None:
        """The first message is lost with its connection, and the server has nothing of it."""
        async with network.client() as client, client.producer("s", name=name) as producer:
            network.streams[-1].cut(Cut(to_server=1))
            await producer.send(message(0), publishing_id=0, filter_value="v")
            await producer.flush()
        async with network.client() as client:
            assert await contents(client, "s") == [0]

    @with_server
    async def test_without_a_name_do_not_give_a_number_twice(self, network: Network) -> None:
        """The confirm of one would count for the other."""
        async with network.client() as client, client.producer("s") as producer:
            await producer.send(message(5), publishing_id=5, filter_value="v")
            for number in (5, 4):
                with pytest.raises(ValueError, match=f"id is {number}, and 5 was given before"):
                    await producer.send(message(number), publishing_id=number)
            assert await producer.send(message(6), filter_value="v") == 6


class TestSuperProducers:
    @pytest.mark.parametrize("gone", range(3))
    @pytest.mark.parametrize("flushes", [True, False])
    @with_server
    async def test_a_partition_that_is_gone_costs_the_others_nothing(
        self, network: Network, gone: int, *, flushes: bool
    ) -> None:
        """Also where the program is told while it goes on sending."""
        given: list[list[int]] = [[], [], []]

        async def publish(producer: SuperProducer, network: Network) -> None:
            for number in range(2_000):
                await producer.send(Message(b"%d" % number))
                given[number % 3].append(number)
                if number == 900:
                    network.is_away = True
                    network.streams[-1].kill()
                    await trio.testing.wait_all_tasks_blocked()
                    await network.server.host.delete(f"super-{gone}", lambda: None)
                if number == 1_200:
                    network.is_away = False
                    if not flushes:
                        await trio.sleep(60)
            if flushes:
                await producer.flush()

        def key(message: Message) -> str:
            return str(int(message.body) % 3)

        async with network.client() as client:
            await client.create_super_stream("super", 3)
            with pytest.raises(PartitionsFailed) as failed:
                async with client.super_producer("super", key, by_key=True) as producer:
                    await publish(producer, network)
            (stream,) = failed.value.errors
            assert stream == f"super-{gone}"
            assert isinstance(failed.value.errors[stream], StreamDoesNotExist)
            confirmed = producer.producers[stream].num_confirmed
            missing = len(given[gone]) - confirmed
            assert failed.value.num_missing == {stream: missing}
            assert f": {missing} of {stream} (cannot publish to" in str(failed.value)
            for other in set(range(3)) - {gone}:
                assert list(dict.fromkeys(await contents(client, f"super-{other}"))) == given[other]

    @with_server
    async def test_each_partition_says_what_it_refuses(self, network: Network) -> None:
        async with network.client() as client:
            await client.create_super_stream("super", 2, arguments=STRICT)
            async with client.super_producer(
                "super", lambda m: m.body.decode(), by_key=True, filter_value=lambda _: "w"
            ) as producer:
                for key in (b"0", b"1", b"1"):
                    await producer.send(Message(key, application_properties={"p": "v"}))
                with pytest.raises(PartitionsFailed) as failed:
                    await producer.flush()
            assert failed.value.num_missing == {"super-0": 1, "super-1": 2}
            assert len(failed.value.refused) == 3


@pytest.mark.parametrize("ask", QUESTIONS)
@with_server
async def test_questions_are_asked_again(network: Network, ask: str) -> None:
    """The connection breaks at each step of them; only what changes something is not repeated."""
    async with network.client() as client:
        await client.register_selector("s", "g", sql="p = 'v'")
        await client.create_super_stream("super", 2)
        await client.set_offset("s", "c", 0)
    for number in itertools.count(0, 3):
        async with network.client() as client:
            act = partial(QUESTIONS[ask], client)
            if await disturbed(network, act, Disturbance.KILLED, number):
                break
    assert number
