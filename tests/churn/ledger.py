"""What may be found in a stream: what its publishers know of it, and what each answer must hold.

A delete divides the life of a stream of a name: what was published before it is gone when it was
carried out, and nobody can say what there is while it is. So its beginning and its end begin a new
*epoch* each. What was published and confirmed within one epoch must be found in it, from the offset
on at which the stream begins: a search is followed by a look at that, as it only ever grows.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.churn.doors import Broken

_SHOWN = 3


@dataclass(eq=False, slots=True)
class Sent:
    """A message that was published, or was about to be.

    Attributes:
        identity: no other message has it.
        key: a few others have it.
        region: a few values.
        body: of the message.
        epoch: in which it was sent; None while a delete was going on.
        life: how many deletes had been carried out; None while one was going on.
        floor: its offset is not lower than this.
        is_confirmed: the server has said that it is stored.
        confirmed_at: and when, as a number of events.
        offset: where it was found.
    """

    identity: str
    key: str
    region: str
    body: bytes
    epoch: int | None
    life: int | None
    floor: int
    is_confirmed: bool = False
    confirmed_at: int = 0
    offset: int | None = None


class Found(NamedTuple):
    """A message of an answer."""

    offset: int
    body: bytes


class Moment(NamedTuple):
    """When a search was begun."""

    epoch: int | None
    number: int
    begins_at: int


@dataclass
class Ledger:
    """One stream, as its clients know it.

    Attributes:
        name: of the stream.
        has_retention: it may lose its oldest messages at any time.
        sent: what was published to it, by body.
        next_offset: all messages that were published until now are below it.
        cut_to: without retention it does not begin behind this.
    """

    name: str
    has_retention: bool = False
    sent: dict[bytes, Sent] = field(default_factory=dict)
    next_offset: int = 0
    cut_to: int = 0
    _number: int = 0
    _epoch: int = 0
    _num_deletes: int = 0
    _life: int = 0
    _first: int = 0  # it begins here, or behind it
    _at: dict[int, bytes] = field(default_factory=dict)

    # -- what happens to it

    @property
    def epoch(self) -> int | None:
        """None while it is being deleted."""
        return None if self._num_deletes else self._epoch

    def _tick(self) -> int:
        self._number += 1
        return self._number

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self.next_offset = self._first = self.cut_to = 0
        self._at.clear()

    @contextmanager
    def deleting(self) -> Iterator[None]:
        """A delete that is going on; where it raises, whether it has an effect is not known."""
        self._num_deletes += 1
        self._begin_epoch()
        try:
            yield
            self._life += 1
        finally:
            self._num_deletes -= 1
            self._begin_epoch()

    def note_sent(self, identity: str, key: str, region: str, body: bytes) -> Sent:
        """A message is about to be published."""
        life = None if self._num_deletes else self._life
        found = Sent(identity, key, region, body, self.epoch, life, self.next_offset)
        self.sent[body] = found
        return found

    def note_confirmed(self, messages: Collection[Sent]) -> None:
        """They are stored."""
        number = self._tick()
        for message in messages:
            message.is_confirmed, message.confirmed_at = True, number

    def note_cutting(self, offset: int) -> None:
        """It is about to be truncated before an offset."""
        self.cut_to = max(self.cut_to, offset)

    def note_cut(self, epoch: int | None, wanted: int, first: int) -> None:
        """It was.

        Raises:
            Broken: more was removed than was asked for.
        """
        if epoch is None or epoch != self.epoch:
            return
        if first > self.cut_to and not self.has_retention:
            raise Broken(f"{self.name}: cut before {wanted}, it begins at {first}")
        self._first = max(self._first, first)

    # -- what is found in it

    def moment(self) -> Moment:
        """Now: a search is about to begin."""
        return Moment(self.epoch, self._tick(), self._first)

    def is_expected(self, moment: Moment) -> bool:
        """Whether there must be a stream, from a moment until now."""
        return self._is_calm(moment) and any(
            sent.is_confirmed and sent.epoch == moment.epoch for sent in self.sent.values()
        )

    def _is_calm(self, moment: Moment) -> bool:
        return moment.epoch is not None and moment.epoch == self.epoch

    def judge(
        self,
        what: str,
        moment: Moment,
        found: list[Found],
        first: int | None,
        wanted: Callable[[Sent], bool],
        *,
        newest: bool = False,
    ) -> None:
        """Compare an answer, all pages together, with what must be in it.

        Args:
            what: was asked for, for people.
            moment: when it was.
            found: the answer.
            first: the stream's first offset, asked for afterwards; None where it is gone.
            wanted: whether a message has what was asked for.
            newest: the newest message comes first.

        Raises:
            Broken: something is wrong, missing, doubled, or in another order.
        """
        messages = self._known(what, found, wanted)
        offsets = [one.offset for one in found]
        if offsets != sorted(set(offsets), reverse=newest):
            raise Broken(f"{what}: the order is {offsets}")
        lives = sorted({sent.life for sent in messages if sent.life is not None})
        if len(lives) > 1:
            raise Broken(f"{what}: messages of before and after a delete, {lives}: {offsets}")
        if not self._is_calm(moment):
            return
        self._learn(what, messages, found)
        if min(offsets, default=moment.begins_at) < moment.begins_at:
            raise Broken(f"{what}: {min(offsets)} is found, cut before {moment.begins_at}")
        if first is None:
            raise Broken(f"{what}: there is no stream, and nobody has deleted it")
        if first > self.cut_to and not self.has_retention:
            raise Broken(f"{what}: it begins at {first}, and was never cut behind {self.cut_to}")
        self._first = max(self._first, first)
        there = set(messages)
        missing = [
            sent
            for sent in self.sent.values()
            if sent not in there and self._must_have(sent, moment, first) and wanted(sent)
        ]
        if missing:
            shown = "; ".join(map(str, missing[:_SHOWN]))
            counts = f"{len(missing)} messages are missing, {len(found)} were found"
            raise Broken(f"{what}: {counts}, it begins at {first} now. Missing: {shown}")

    def judge_latest(
        self, what: str, moment: Moment, found: list[Found], first: int | None, keys: list[str]
    ) -> None:
        """Compare an answer that is to hold the newest message of each key.

        Raises:
            Broken: it does not.
        """
        messages = self._known(what, found, lambda sent: sent.key in keys)
        if len({sent.key for sent in messages}) < len(messages):
            raise Broken(f"{what}: a key has two newest messages, {found}")
        if not self._is_calm(moment) or first is None:
            return
        self._learn(what, messages, found)
        newest = {sent.key: one.offset for sent, one in zip(messages, found, strict=True)}
        for sent in self.sent.values():
            if sent.key in keys and self._must_have(sent, moment, first):
                at = sent.floor if sent.offset is None else sent.offset
                if newest.get(sent.key, -1) < at:
                    raise Broken(f"{what}: {sent} is newer than what was found, {newest}")

    def _must_have(self, sent: Sent, moment: Moment, first: int) -> bool:
        at = sent.floor if sent.offset is None else sent.offset
        is_stored = sent.is_confirmed and sent.confirmed_at <= moment.number
        return is_stored and sent.epoch == moment.epoch and at >= first

    def _known(self, what: str, found: list[Found], wanted: Callable[[Sent], bool]) -> list[Sent]:
        messages = []
        for offset, body in found:
            sent = self.sent.get(body)
            if sent is None:
                raise Broken(f"{what}: {body[:80]!r} at {offset} was never published there")
            if not wanted(sent):
                raise Broken(f"{what}: {sent} at {offset} is not what was asked for")
            messages.append(sent)
        if len(set(messages)) < len(messages):
            raise Broken(f"{what}: a message is there twice: {found}")
        return messages

    def _learn(self, what: str, messages: list[Sent], found: list[Found]) -> None:
        """Where messages stand, which never changes."""
        for sent, (offset, body) in zip(messages, found, strict=True):
            there = self._at.setdefault(offset, body)
            if there != body:
                raise Broken(f"{what}: {sent} is found at {offset}, where {there[:80]!r} was")
            if sent.offset not in (None, offset):
                raise Broken(f"{what}: {sent} is found at {offset}")
            if offset < sent.floor and sent.epoch == self.epoch:
                raise Broken(f"{what}: {sent} is found at {offset}, before what was there already")
            sent.offset = offset
            self.next_offset = max(self.next_offset, offset + 1)
