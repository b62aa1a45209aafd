"""Subscriptions of one connection, and the offsets that consumers store."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from segments import ChunkMatcher, Log, Reader, StorageError
from segments.marks import life_number
from streamd.broker.declared.checks import check_asked, check_properties, properties_size, recorded
from streamd.broker.streams.fetcher import NoTierError
from streamd.broker.streams.groups import Group, GroupKey
from streamd.broker.streams.stream import Stream
from streamd.config import MAX_IDS, UPDATE_SECONDS
from streamd.connections.stream.context import (
    Context,
    Handlers,
    HandlersAtOnce,
    check_reference,
    offset_spec,
)
from streamd.connections.stream.delivery import Interest, Subscription
from streamd.connections.stream.response_codes import OK, SubscriptionIdTaken, code_of
from streamd.operations.arguments import MAX_FILTER_PROPERTIES
from streamd.operations.connections import ConsumerFacts
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import as_sent
from streamd.operations.rights import Right
from streamd.wire.stream import ResponseCode, commands as c, subscribe_properties as words
from streamd.wire.stream.fields import Statistic

logger = logging.getLogger(__name__)

_AS_SUBSCRIBED = 0  # offset type in an answer to ConsumerUpdate


@dataclass(slots=True)
class _Question:
    """A ConsumerUpdate that the client has not answered yet."""

    member: "SingleActive"
    active: bool
    deadline: float


class SingleActive:
    """A subscription that gets chunks only while its group says so; see groups.Member."""

    def __init__(
        self, consumers: "Consumers", subscription: Subscription, group: Group, key: GroupKey
    ) -> None:
        self.subscription = subscription
        self.group = group
        self.key = key
        self._consumers = consumers

    def tell_active(self, *, active: bool) -> None:
        """See groups.Member."""
        if not active:
            self.subscription.deactivate()
        self._consumers.question(self, active=active)


class Consumers:
    """Begins, credits and ends the subscriptions of one connection.

    Attributes:
        at_once: for commands that are carried out without waiting.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._delivery = context.delivery
        self._members: dict[int, SingleActive] = {}
        self._questions: dict[int, _Question] = {}
        self._next_question = 0
        self._has_ended = False
        self.handlers: Handlers = {
            c.Subscribe: self._subscribe,
            c.QueryOffset: self._query_offset,
            c.Unsubscribe: self._unsubscribe,
            c.ConsumerUpdateResponse: self._answered,
            c.DescribeSubscription: self._describe,
        }
        self.at_once: HandlersAtOnce = {
            c.Credit: self._credit,
            c.StoreOffset: self._store_offset,
        }

    def close(self) -> None:
        """The connection ends: its consumers leave their groups, and none of them takes over."""
        self._has_ended = True
        self._delivery.close()

    def has(self, number: int) -> bool:
        """Whether there is a subscription of that number."""
        return number in self._delivery.subscriptions

    def forget(self, stream: Stream) -> bool:
        """Drop the subscriptions of a stream; returns whether there were any."""
        numbers = [n for n, s in self._delivery.subscriptions.items() if s.stream is stream]
        for number in numbers:
            self._delivery.remove(number)
        return bool(numbers)

    def without_right(self) -> set[Stream]:
        """Streams that are read, though that is no longer allowed."""
        streams = {s.stream for s in self._delivery.subscriptions.values()}
        return {s for s in streams if not self._context.rights.allows(Right.READ, s.name)}

    def facts(self) -> list[ConsumerFacts]:
        """The subscriptions at the moment."""
        return [
            _facts(subscription, is_single_active=number in self._members)
            for number, subscription in self._delivery.subscriptions.items()
        ]

    @property
    def is_overdue(self) -> bool:
        """Whether the client has left a ConsumerUpdate unanswered for too long."""
        now = trio.current_time()
        return any(question.deadline < now for question in self._questions.values())

    # -- subscriptions

    async def _subscribe(self, command: c.Subscribe) -> None:
        try:
            await self._add(command)
        except Refused as refused:
            logger.info("not subscribed to %s: %s", command.stream[:40], refused)
            self._context.answer(c.SubscribeResponse(command.correlation_id, code_of(refused)))

    async def _add(self, command: c.Subscribe) -> None:
        used = self._delivery.subscriptions
        properties = words.shown(command.properties)
        name = properties.get(words.NAME, "")
        if len(used) >= MAX_IDS:
            details = f"the connection has {MAX_IDS} subscriptions, the most there can be"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        stream_name = as_sent(command.stream)
        self._context.rights.require(Right.READ, stream_name)
        size = properties_size(properties.items())
        check_properties(size, sum(s.interest.properties_size for s in used.values()))
        check_reference(name)
        self._context.host.find(stream_name)
        if command.subscription_id in used:
            raise SubscriptionIdTaken
        async with self._context.readable(stream_name) as (stream, log):
            _require_life(log, properties.get(words.LIFE))
            self._add_to(stream, command, properties, size)

    def _add_to(
        self, stream: Stream, command: c.Subscribe, properties: dict[str, str], size: int
    ) -> None:
        """Add a subscription to a stream whose log is open."""
        interest = _interest(command, stream, properties)._replace(
            is_stored=properties.get(words.STORED_CHUNKS) == words.TRUE, properties_size=size
        )
        if properties.get(words.SINGLE_ACTIVE) != words.TRUE:
            self._add_plain(command, stream, interest)
        elif properties.get(words.NAME):
            self._add_single_active(command, stream, interest, properties)
        else:
            details = "a single active consumer needs a name"
            raise Refused(Reason.PRECONDITION_FAILED, details)

    def _add_plain(self, command: c.Subscribe, stream: Stream, interest: Interest) -> None:
        number = command.subscription_id
        subscription = self._delivery.add(number, stream, interest, command.credit)
        try:
            subscription.activate(interest.start)
        except (StorageError, NoTierError) as error:
            self._delivery.remove(number)
            logger.error("stream %s cannot be read: %s", stream.name, error)
            raise Refused(Reason.NOT_AVAILABLE) from error
        self._context.answer(c.SubscribeResponse(command.correlation_id, OK))
        subscription.check()  # only now: no chunk before the answer

    def _add_single_active(
        self, command: c.Subscribe, stream: Stream, interest: Interest, properties: dict[str, str]
    ) -> None:
        host = self._context.host
        number = command.subscription_id
        key = GroupKey(stream.name, properties[words.NAME])
        partition = host.super_streams.partition_number(
            as_sent(properties.get(words.SUPER_STREAM, "")), stream.name
        )

        def make_member(group: Group) -> SingleActive:
            leave = partial(self._leave, number)
            subscription = self._delivery.add(number, stream, interest, command.credit, leave)
            member = self._members[number] = SingleActive(self, subscription, group, key)
            self._context.answer(c.SubscribeResponse(command.correlation_id, OK))
            return member

        host.groups.join(key, partition, make_member)

    def _leave(self, number: int) -> None:
        member = self._members.pop(number)
        self._drop_questions(member)
        self._context.host.groups.leave(member.key, member.group, member)

    async def _unsubscribe(self, command: c.Unsubscribe) -> None:
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        if command.subscription_id in self._delivery.subscriptions:
            self._delivery.remove(command.subscription_id)
            code = OK
        self._context.answer(c.UnsubscribeResponse(command.correlation_id, code))

    def _credit(self, command: c.Credit) -> bool:
        number = command.subscription_id
        subscription = self._delivery.subscriptions.get(number)
        if subscription is None:
            code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
            self._context.answer(c.CreditResponse(code, number))
            return True
        subscription.add_credit(command.credit)
        if not subscription.is_active:
            self._context.answer(c.CreditResponse(ResponseCode.PRECONDITION_FAILED, number))
        return True

    async def _describe(self, command: c.DescribeSubscription) -> None:
        corr = command.correlation_id
        subscription = self._delivery.subscriptions.get(command.subscription_id)
        if subscription is None:
            code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
            self._context.answer(c.DescribeSubscriptionResponse(corr, code))
            return

        def tell() -> None:
            reader = subscription.reader
            code = OK if reader else ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
            figures = _progress(reader, subscription.position) if reader else ()
            self._context.answer(c.DescribeSubscriptionResponse(corr, code, figures))

        try:
            subscription.watch(command.awaited_offset, tell)
        except Refused as refused:
            self._context.answer(c.DescribeSubscriptionResponse(corr, code_of(refused)))

    # -- single active consumers

    def question(self, member: SingleActive, *, active: bool) -> None:
        """Ask the client to begin or to stop with a subscription."""
        if self._has_ended:
            return  # one after the other leaves its group
        self._drop_questions(member)  # of the two the newer one counts
        number = self._next_question
        self._next_question += 1
        deadline = trio.current_time() + UPDATE_SECONDS
        self._questions[number] = _Question(member, active, deadline)
        subscription_id = member.subscription.subscription_id
        self._context.answer(c.ConsumerUpdate(number, subscription_id, int(active)))

    def _drop_questions(self, member: SingleActive) -> None:
        self._questions = {n: q for n, q in self._questions.items() if q.member is not member}

    async def _answered(self, command: c.ConsumerUpdateResponse) -> None:
        question = self._questions.pop(command.correlation_id, None)
        if question is None:
            return
        member = question.member
        if command.code != OK:
            logger.info("a consumer of %s answers with code %s", member.subscription, command.code)
        if not question.active:
            member.group.answered(member)
        elif member.group.active is member and not member.subscription.is_active:
            self._activate(member.subscription, command)

    def _activate(self, subscription: Subscription, command: c.ConsumerUpdateResponse) -> None:
        start = subscription.interest.start
        try:
            if command.offset.type != _AS_SUBSCRIBED:
                start = offset_spec(command.offset)
        except Refused as refused:
            logger.info("stream %s: %s", subscription.stream.name, refused)
        try:
            subscription.activate(start)
        except (StorageError, NoTierError) as error:
            self._delivery.cannot_read(subscription, error)
            return
        subscription.check()

    # -- stored offsets

    def _store_offset(self, command: c.StoreOffset) -> bool:
        try:  # there is no answer: what cannot be stored is ignored
            name = as_sent(command.stream)
            stream = self._context.host.find(name)
            if not any(s.stream is stream for s in self._delivery.subscriptions.values()):
                self._context.rights.require(Right.READ, name)
            stream.store_offset(command.reference, command.offset)
        except (Refused, ValueError) as error:
            logger.debug("offset not stored: %s", error)
        return True

    async def _query_offset(self, command: c.QueryOffset) -> None:
        offset, code = None, OK
        try:
            name = as_sent(command.stream)
            self._context.rights.require(Right.READ, name)
            check_reference(command.reference)
            async with self._context.readable(name) as (stream, _):
                await stream.settled_in_time()
                found = stream.stored_offset(command.reference)
            offset, code = found, ResponseCode.NO_OFFSET if found is None else OK
        except Refused as refused:
            code = code_of(refused)
        answer = c.QueryOffsetResponse(command.correlation_id, code, offset or 0)
        self._context.answer(answer)


def _require_life(log: Log, asked: str | None) -> None:
    """Raise Refused where a consumer knows offsets of another stream of the same name."""
    life = life_number(log.life)
    if None not in (asked, life) and asked != str(life):
        raise Refused(Reason.NOT_FOUND, "it was deleted, and one of the same name was made")


def _interest(command: c.Subscribe, stream: Stream, properties: Mapping[str, str]) -> Interest:
    """What a subscription asks for.

    Raises:
        Refused: its filter or its group's selector cannot be used.
    """
    start = offset_spec(command.offset)
    group = properties.get(words.SELECTOR_GROUP)
    if group is None:
        if properties.get(words.FILTER_MODE) == words.NOTHING:
            text = "stream %s: a consumer has a selector that no message can match: %s"
            logger.warning(text, stream.name, properties.get(words.SELECTOR, "not stated"))
        contract = stream.contract
        wanted = _matcher(command.properties, () if contract is None else contract.further)
        if wanted is not None:
            stream.log.filter_demand.add(recorded(wanted.asked))
        return Interest(start, wanted, properties)
    text, dialect = (properties.get(word, "") for word in (words.SELECTOR, words.SELECTOR_DIALECT))
    matcher = stream.standing.matcher(group, text, dialect)
    return Interest(start, matcher, properties, group)


def _matcher(
    properties: Iterable[tuple[str, str]], declared: Collection[str]
) -> ChunkMatcher | None:
    """The filter a subscription asks for; match-unfiltered alone asks for none.

    Args:
        properties: of the subscription.
        declared: the stream's further filter properties; what is asked of others is ignored.
    """
    mode = dict(properties).get(words.FILTER_MODE)
    if mode == words.NOTHING:
        return ChunkMatcher(())
    values = [
        words.value_of(text) for key, text in properties if key.startswith(words.FILTER_PREFIX)
    ]
    further = [asked for asked in words.asked_properties(properties) if asked.name in declared]
    if len(further) > MAX_FILTER_PROPERTIES:
        details = f"a consumer asks for {len(further)} filter properties, expected each once"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    check_asked([*values, *(value for asked in further for value in asked.values)])
    match_unfiltered = (words.MATCH_UNFILTERED, words.TRUE) in list(properties)
    try:
        if mode == words.UNFILTERED_ONLY:
            return ChunkMatcher((), match_unfiltered=True, properties=further)
        if not values and not further:
            return None
        return ChunkMatcher(values or None, match_unfiltered=match_unfiltered, properties=further)
    except ValueError as error:
        raise Refused(Reason.PRECONDITION_FAILED, str(error)) from error


def _facts(subscription: Subscription, *, is_single_active: bool) -> ConsumerFacts:
    reader, log = subscription.reader, subscription.stream.log
    next_offset = subscription.position
    return ConsumerFacts(
        subscription.subscription_id,
        subscription.stream.name,
        subscription.interest.properties,
        subscription.credit,
        consumed=reader.counts.records if reader else 0,
        next_offset=next_offset,
        lag=log.segments.gaps.num_between(next_offset, log.committed_offset) if reader else 0,
        lag_seconds=subscription.stream.lag_seconds(reader, next_offset) if reader else 0.0,
        is_single_active=is_single_active,
        is_active=subscription.is_active,
    )


def _progress(reader: Reader, next_offset: int) -> tuple[Statistic, ...]:
    counts = reader.counts
    return (
        Statistic("next_offset", next_offset),
        Statistic("chunks", counts.chunks),
        Statistic("messages", counts.records),
        Statistic("skipped_chunks", counts.skipped_chunks),
        Statistic("skipped_bytes", counts.skipped_bytes),
        Statistic("unfiltered_chunks", counts.unfiltered_chunks),
        Statistic("lost_messages", counts.lost_records),
    )
