"""Publishers of one connection."""

import logging

import trio

from segments.entries import ID_SIZE, Entries, pick, split
from segments.format_constants import SUB_BATCH_BIT
from streamd.broker.declared.filter_contract import Checked
from streamd.broker.streams.publication import PendingEntries
from streamd.broker.streams.stream import Stream
from streamd.config import MAX_IDS
from streamd.connections.stream.context import (
    Context,
    Handlers,
    HandlersAtOnce,
    check_reference,
)
from streamd.connections.stream.publisher import StreamPublisher
from streamd.connections.stream.response_codes import OK, code_of
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.connections import PublisherFacts
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import as_sent
from streamd.operations.rights import Right
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.publish import (
    KnownSizes,
    decode_entries,
    decode_filtered_entries,
    encode_refusal,
    has_sub_batches,
    parts_of,
    publishing_ids_of,
)

# Of a connection: some 40 ms at worst. One read of messages of 100 bytes has half as many, and is
# not to be cut; a frame can hold 87,000.
MESSAGES_A_TURN = 20_000
_FILTERED_A_TURN = 5_000  # of a frame: a filter value is as much work as a message
# Messages of a frame that are taken before others have a turn, and how they are read.
_MOST_AT_ONCE = {c.Publish: MESSAGES_A_TURN, c.PublishFiltered: _FILTERED_A_TURN}
_DECODE = {c.Publish: decode_entries, c.PublishFiltered: decode_filtered_entries}
_CHECKED_A_TURN = 100  # messages whose filter property is looked for before others have a turn
_CHECKED_BYTES_A_TURN = 64 << 10  # of them

logger = logging.getLogger(__name__)


class Publishers:
    """Declares, uses and deletes the publishers of one connection.

    Attributes:
        at_once: for commands that need no waiting where there is room.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._publishers: dict[int, tuple[StreamPublisher, Stream]] = {}
        self._sizes = {
            c.Publish: KnownSizes(filtered=False),
            c.PublishFiltered: KnownSizes(filtered=True),
        }
        self.handlers: Handlers = {
            c.DeclarePublisher: self._declare,
            c.QueryPublisherSequence: self._query_sequence,
            c.DeletePublisher: self._delete,
        }
        self.at_once: HandlersAtOnce = {
            c.Publish: self.publish,
            c.PublishFiltered: self.publish,
        }

    async def settled(self) -> None:
        """Return when everything the connection has published is stored or refused."""
        for _, stream in list(self._publishers.values()):
            await stream.settled()

    @property
    def are_none(self) -> bool:
        """There is no publisher."""
        return not self._publishers

    def has(self, number: int) -> bool:
        """Whether there is a publisher of that number."""
        return number in self._publishers

    def forget(self, stream: Stream) -> bool:
        """Drop the publishers of a stream; returns whether there were any."""
        numbers = [n for n, (_, used) in self._publishers.items() if used is stream]
        for number in numbers:
            self._publishers.pop(number)[0].delete()
        return bool(numbers)

    def without_right(self) -> set[Stream]:
        """Streams that are published to, though that is no longer allowed."""
        rights = self._context.rights
        return {s for _, s in self._publishers.values() if not rights.allows(Right.WRITE, s.name)}

    def facts(self) -> list[PublisherFacts]:
        """The publishers at the moment."""
        return [
            PublisherFacts(
                p.publisher_id, p.reference.decode(), s.name, p.published, p.confirmed, p.refused
            )
            for p, s in self._publishers.values()
        ]

    def close(self) -> None:
        """The connection ended."""
        for publisher, _ in self._publishers.values():
            publisher.delete()
        self._publishers.clear()

    async def publish_in_turns(self, command: c.Publish | c.PublishFiltered) -> None:
        """Give a frame to its stream as room and other connections allow.

        Raises:
            RemoteProtocolError: the frame is malformed.
        """
        kind, number, is_filtered = type(command), command.publisher_id, _is_filtered(command)
        most = _MOST_AT_ONCE[kind]
        if command.num_entries <= most:
            await self._publish_part(command)
            return
        cut = parts_of(command.entries, command.num_entries, most, filtered=is_filtered)
        parts = [part async for part in in_turns(cut)]  # before one of them is stored
        is_sound = True
        for entries, count in parts:
            await trio.lowlevel.checkpoint()
            found = self._publishers.get(number)
            if found is not None and not is_sound:
                ids = publishing_ids_of(entries, count, filtered=is_filtered)
                found[0].refuse(ids, Reason.PRECONDITION_FAILED)
            else:
                is_sound = await self._publish_part(kind(number, count, entries))

    async def _publish_part(self, command: c.Publish | c.PublishFiltered) -> bool:
        """Give messages to their stream; whether no sub-batch among them was bad."""
        found = self._publishers.get(command.publisher_id)
        if found is None:
            self._refuse_all(command)
            return True
        publisher, stream = found
        await stream.room()
        if stream.contract is None or not _looks_long(command):
            return self._store_all(publisher, stream, command)
        kind = type(command)
        decoded = _DECODE[kind](command.entries, command.num_entries, self._sizes[kind])
        publisher.received(command.num_entries)
        for entries in decoded.groups:
            if entries.data[0] & SUB_BATCH_BIT:
                await self._store_sub_batch(publisher, stream, entries)
            else:
                for part in split(entries, _CHECKED_A_TURN, _CHECKED_BYTES_A_TURN):
                    await self._store_part(publisher, stream, part)
            await stream.room()
        if decoded.refused_ids:
            publisher.refuse(decoded.refused_ids, Reason.PRECONDITION_FAILED)
        return not decoded.refused_ids

    async def _store_sub_batch(
        self, publisher: StreamPublisher, stream: Stream, entries: Entries
    ) -> None:
        assert stream.contract is not None  # noqa: S101 - see `_looks_long`
        checked = await threads.compute(stream.contract.check_sub_batch, entries)
        self._give(publisher, stream, entries, checked)

    async def _store_part(
        self, publisher: StreamPublisher, stream: Stream, entries: Entries
    ) -> None:
        assert stream.contract is not None  # noqa: S101 - see `_looks_long`
        if len(entries.data) > _CHECKED_BYTES_A_TURN:  # one message: its properties may be many
            checked = await threads.compute(stream.contract.check, entries)
        else:
            checked = stream.contract.check(entries)
            await trio.lowlevel.checkpoint()
        self._give(publisher, stream, entries, checked)

    def publish(self, command: c.Publish | c.PublishFiltered) -> bool:
        """Give a frame to its stream; False, and nothing done, when that may take a while."""
        if command.num_entries > _MOST_AT_ONCE[type(command)]:
            return False
        found = self._publishers.get(command.publisher_id)
        if found is None:
            self._refuse_all(command)
            return True
        publisher, stream = found
        if stream.is_crowded or (stream.contract is not None and _looks_long(command)):
            return False
        self._store_all(publisher, stream, command)
        return True

    def _refuse_all(self, command: c.Publish | c.PublishFiltered) -> None:
        """The publisher was not declared, or is gone."""
        ids = publishing_ids_of(
            command.entries, command.num_entries, filtered=_is_filtered(command)
        )
        code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
        traffic = self._context.traffic
        traffic.messages_received += command.num_entries
        traffic.errors[code] += 1
        self._context.outbox.put(encode_refusal(command.publisher_id, ids, code))

    def _store_all(
        self, publisher: StreamPublisher, stream: Stream, command: c.Publish | c.PublishFiltered
    ) -> bool:
        """Give messages to their stream at once; whether no sub-batch among them was bad."""
        kind = type(command)
        decoded = _DECODE[kind](command.entries, command.num_entries, self._sizes[kind])
        publisher.received(command.num_entries)
        contract = stream.contract
        for entries in decoded.groups:
            checked = Checked(entries) if contract is None else contract.check(entries)
            self._give(publisher, stream, entries, checked)
        if decoded.refused_ids:
            publisher.refuse(decoded.refused_ids, Reason.PRECONDITION_FAILED)
        return not decoded.refused_ids

    def _give(
        self, publisher: StreamPublisher, stream: Stream, entries: Entries, checked: Checked
    ) -> None:
        """Give a stream what is left of entries, unless the publisher was stopped before them."""
        if publisher.is_deleted:  # while its messages were checked: the right or the stream is gone
            return
        kept, refused = checked
        behind = b""
        if publisher.is_stopped:
            kept, refused, behind = None, b"", entries.publishing_ids
        elif refused and publisher.reference:
            kept, refused, behind = _up_to_refused(entries, checked)
        if refused:
            publisher.refuse(refused, Reason.PRECONDITION_FAILED)
        if behind:
            publisher.refuse_behind(behind)
        if kept is not None:
            stream.publish(PendingEntries(publisher, kept))

    async def _declare(self, command: c.DeclarePublisher) -> None:
        try:
            await self._add(command)
            code = OK
        except Refused as refused:
            logger.info("no publisher for %s: %s", command.stream[:40], refused)
            code = code_of(refused)
        self._context.answer(c.DeclarePublisherResponse(command.correlation_id, code))

    async def _add(self, command: c.DeclarePublisher) -> None:
        reference, name = command.reference, as_sent(command.stream)
        if len(self._publishers) >= MAX_IDS:
            details = f"the connection has {MAX_IDS} publishers, the most there can be"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        self._context.rights.require(Right.WRITE, name)
        check_reference(reference)
        named = {(p.reference, s.name) for p, s in self._publishers.values() if p.reference}
        if command.publisher_id in self._publishers or (reference.encode(), name) in named:
            raise Refused(Reason.PRECONDITION_FAILED)
        stream = self._context.host.find(name)
        await stream.ready()
        self._context.rights.require(Right.WRITE, name)  # it may have gone meanwhile
        stream.check_writable()
        context = self._context
        publisher = StreamPublisher(
            command.publisher_id, reference, context.outbox, context.traffic
        )
        self._publishers[command.publisher_id] = (publisher, stream)

    async def _query_sequence(self, command: c.QueryPublisherSequence) -> None:
        sequence, code = 0, OK
        try:
            name = as_sent(command.stream)
            self._context.rights.require(Right.READ, name)
            check_reference(command.reference)
            async with self._context.readable(name) as (stream, log):
                await stream.settled_in_time()  # what this connection sent before counts
                found = log.journal.tracking.sequence(command.reference.encode()) or 0
            sequence = found
        except Refused as refused:
            code = code_of(refused)
        corr = command.correlation_id
        self._context.answer(c.QueryPublisherSequenceResponse(corr, code, sequence))

    async def _delete(self, command: c.DeletePublisher) -> None:
        found = self._publishers.pop(command.publisher_id, None)
        code = OK if found else ResponseCode.PUBLISHER_DOES_NOT_EXIST
        if found:
            found[0].delete()
        self._context.answer(c.DeletePublisherResponse(command.correlation_id, code))


def _is_filtered(command: c.Publish | c.PublishFiltered) -> bool:
    return isinstance(command, c.PublishFiltered)


def _up_to_refused(entries: Entries, checked: Checked) -> tuple[Entries | None, bytes, bytes]:
    """What is stored of entries before the first that is refused; its id; the ids behind it."""
    ids, refused = entries.publishing_ids, checked.refused_ids[:ID_SIZE]
    at = next(at for at in range(0, len(ids), ID_SIZE) if ids[at : at + ID_SIZE] == refused)
    kept = None
    if at and checked.entries is not None:
        kept = pick(checked.entries, range(at // ID_SIZE))
    return kept, refused, ids[at + ID_SIZE :]


def _looks_long(command: c.Publish | c.PublishFiltered) -> bool:
    """Whether looking into the messages of a frame, for a contract, keeps others waiting."""
    entries = command.entries
    return (
        command.num_entries > _CHECKED_A_TURN
        or len(entries) > _CHECKED_BYTES_A_TURN
        or (isinstance(command, c.Publish) and has_sub_batches(entries, command.num_entries))
    )
