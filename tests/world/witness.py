"""What clients were told, against what any later reader sees.

The witness knows nothing of the code. It hears what each client was told (confirmed, delivered,
stored, found, truncated) and in the end what is in the stream. Each promise of the documentation
that a client relies on is one checker, with the sentence that it holds; see `PROMISES`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

_LAST_SECOND = 2.0  # seconds before a power failure: the interval of flushes, and a flush
_NEVER = 1e9


class Sent(NamedTuple):
    """A message, by who has published it, and its number there."""

    who: str
    number: int

    def __str__(self) -> str:
        return f"{self.who}:{self.number}"


class Seen(NamedTuple):
    """A message that somebody was given.

    Attributes:
        edition: what stands under its number; another one where it was published anew.
    """

    offset: int
    message: Sent
    edition: int = 0


def read(offset: int, body: bytes) -> Seen:
    """The message with this body."""
    text, _, edition = body.decode().partition("/")
    who, _, number = text.partition(":")
    return Seen(offset, Sent(who, int(number)), int(edition or 0))


def parse(body: bytes) -> Sent:
    """The same without where it stands."""
    return read(0, body).message


@dataclass
class Follower:
    """Somebody who reads a stream from its first message on, over restarts of both sides.

    Attributes:
        wants: which messages.
        seen: what it was given, in order.
        runs: of its program: how many messages it had been given before, and the offset from which
            it asked for more.
    """

    wants: Callable[[Sent], bool]
    seen: list[Seen] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)

    def begins(self, asked: int) -> None:
        """Its program is started, and asks for what stands at this offset or behind it."""
        self.runs.append((len(self.seen), asked))


@dataclass
class Block:
    """What one consumer of the client library was given, as long as its program ran.

    Attributes:
        name: of the program.
        seen: in order.
    """

    name: str
    seen: list[Seen] = field(default_factory=list)


@dataclass
class Found:
    """What a search for one message had to find.

    Attributes:
        message: that was confirmed before the search began.
        results: what it has found.
    """

    message: Sent
    results: list[Seen]


@dataclass
class Walk:
    """A search for many messages.

    Attributes:
        wants: which.
        known: those that were confirmed before it began.
        results: what it has found, in order.
        is_newest_first: in which order it was asked for them.
    """

    wants: Callable[[Sent], bool]
    known: set[Sent]
    results: list[Seen]
    is_newest_first: bool


@dataclass
class Witness:
    """See above.

    Attributes:
        flushes: before each confirm, once a second, or when the system likes.
        sent: what was given to a producer.
        confirmed: when each message was confirmed.
        named: producers whose messages are stored once.
        lost: messages that a power failure may have taken, by what is promised.
        begin: the first offset that truncation has left.
        killed_at: when the server was killed that has not opened the stream again.
        keeps_all: no message goes because it is old.
        asked: offsets that truncation was asked for, answered or not.
        followers: by name.
        found: searches for one message.
        walks: searches for many.
        stored: what the server said is stored for a name, and when.
        stored_at_end: what it said last; None is nothing.
        sequences: numbers that publishers have come to, as it says; None is nothing.
        figures: what it said of the stream in the end, by name.
        log: what is in the stream in the end, in order.
        uploaded: messages that a machine which is lost does not take with it.
        elsewhere: what was seen of the stream on servers that were replaced.
        left: offsets that such a server alone had, from one to before another.
        faults: what did not hold and was noticed on the way.
        blocks: of consumers of the client library.
        unconfirmed: messages that were not confirmed when the server ended in order.
        in_store_since: what is sent from then on is confirmed by an object store; None while it
            is not.
        others: what was told about other streams, by name.
        judges: of what parts were told beside that.
        cut_short: why the world came to its end before anybody had a last look; empty if it did
            not. No promise can be judged then: what was not read would count as lost.
    """

    flushes: str
    sent: dict[Sent, float] = field(default_factory=dict)
    confirmed: dict[Sent, float] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    lost: set[Sent] = field(default_factory=set)
    begin: int = 0
    killed_at: float = _NEVER
    keeps_all: bool = True
    asked: int = 0
    followers: dict[str, Follower] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    walks: list[Walk] = field(default_factory=list)
    stored: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    stored_at_end: dict[str, int | None] = field(default_factory=dict)
    sequences: Mapping[str, int | None] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    log: list[Seen] = field(default_factory=list)
    uploaded: set[Sent] = field(default_factory=set)
    elsewhere: list[Seen] = field(default_factory=list)
    left: list[tuple[int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    blocks: "list[Block]" = field(default_factory=list)
    unconfirmed: set[Sent] = field(default_factory=set)
    in_store_since: float | None = None
    others: "dict[str, Witness]" = field(default_factory=dict)
    judges: "list[Callable[[Witness], Iterable[str]]]" = field(default_factory=list)
    cut_short: str = ""

    def of_another(self, stream: str) -> "Witness":
        """The witness of another stream."""
        return self.others.setdefault(stream, Witness(self.flushes))

    @property
    def is_all_in_store(self) -> bool:
        """Neither power nor a machine takes anything that somebody was told."""
        return self.in_store_since == 0

    def confirm_in_store(self, since: float | None) -> None:
        """From now on an object store confirms what is sent; None: it does not."""
        self._keep_stored()
        self.in_store_since = since

    def _keep_stored(self) -> None:
        """What an object store has confirmed stays, whatever comes."""
        if self.in_store_since is not None:
            sent, since = self.sent, self.in_store_since
            self.uploaded |= {one for one in self.confirmed if sent[one] >= since}

    def confirm(self, messages: list[Sent], now: float) -> None:
        """A client was told that these are stored, as all of them or as the last one."""
        for message in messages:
            self.confirmed.setdefault(message, now)
            if self.sent.get(message, 0) > self.killed_at:
                self.killed_at = _NEVER  # a server has opened the stream, and flushed it

    def hear_stored(self, name: str, now: float, offset: int | None, least: int = 0) -> None:
        """The server says what a consumer has stored, at least what it was given, or said before.

        None stands for nothing.
        """
        told = self.stored.setdefault(name, [])
        least = max(least, told[-1][1] if told else 0)
        if self.keeps_all and least and (offset is None or offset < least):
            self.faults.append(f"what is stored stays: {name} has {offset}, before {least}")
        if offset is not None:
            told.append((now, offset))

    def kill(self, now: float) -> None:
        """The server was killed: its last second is on the device when the next has opened it."""
        self.killed_at = min(now, self.killed_at)
        for other in self.others.values():
            other.kill(now)

    def lose_power(self, now: float) -> None:
        """From now on, what was confirmed in the last second may be missing.

        When it was confirmed is only known where the program has waited for it.
        """
        for other in self.others.values():
            other.lose_power(now)
        self._lose_behind(now)

    def switch_off(self) -> None:
        """In order; what a killed server has left, and none has opened since, may be missing."""
        for other in self.others.values():
            other.switch_off()
        if self.killed_at != _NEVER:
            self._lose_behind(self.killed_at)

    def _lose_behind(self, now: float) -> None:
        self._keep_stored()
        if self.flushes == "always" or self.is_all_in_store:
            return
        now, self.killed_at = min(now, self.killed_at), _NEVER
        last = now - (_LAST_SECOND if self.flushes == "interval" else _NEVER)
        safe = {sent for sent, at in self.confirmed.items() if at <= last}
        self.lost |= self.sent.keys() - safe - self.uploaded
        for name, told in self.stored.items():
            self.stored[name] = [(at, offset) for at, offset in told if at <= last]

    def lose_machine(self, first: int, following: int) -> None:
        """From now on, what the store did not have may be missing; and what it has may be back."""
        self._keep_stored()
        self.begin, self.killed_at = min(self.begin, first), _NEVER
        if self.is_all_in_store:
            return
        everybody = [seen for follower in self.followers.values() for seen in follower.seen]
        stored = {seen.message for seen in everybody if seen.offset < following}
        self.lost |= self.sent.keys() - stored - self.uploaded
        self.stored.clear()

    def was_left(self, offset: int) -> bool:
        """A machine that is lost may have given it out, and the store had not got it."""
        return any(first <= offset < following for first, following in self.left)

    def would_find(
        self,
        log: list[Seen],
        now: float,
        stored: Mapping[str, int] | None = None,
        sequences: Mapping[str, int | None] | None = None,
        *,
        is_killed: bool = False,
    ) -> list[str]:
        """What did not hold if a crash left this of the stream.

        Args:
            log: what is there.
            now: when the power failed.
            stored: offsets by name; None when nobody knows.
            sequences: the same of what publishers have come to.
            is_killed: the power did not fail, the server was killed.
        """
        other = replace(self, log=log, lost=set(self.lost), stored=dict(self.stored), faults=[])
        other.others, other.sequences = {}, sequences or {}
        names = self.stored if log and stored is not None else ()
        other.stored_at_end = {name: (stored or {}).get(name) for name in names}
        if not is_killed:
            other.lose_power(now)
        return [f"{check.__name__}: {fault}" for check in _AT_ANY_TIME for fault in check(other)]

    def judge(self) -> list[str]:
        """What did not hold; empty when everything did."""
        if self.cut_short:
            return [f"{self.cut_short}: no last look, no promise is judged", *self.faults]
        found = [f"{name}: {fault}" for name, check in PROMISES.items() for fault in check(self)]
        found += [fault for judge in self.judges for fault in judge(self)]
        for stream, other in self.others.items():
            found += [f"{fault} (in {stream})" for fault in other.judge()]
        return self.faults + found


# -- the promises


def _nothing_confirmed_is_lost(told: Witness) -> Iterator[str]:
    """durability.md: "P1: What was confirmed is there after a crash"."""
    there = {seen.message for seen in told.log}
    for message in told.confirmed.keys() - there - told.lost:
        if not told.asked:
            yield f"{message} was confirmed and is not there"
        elif message.who in told.named and (other := _before(told, message)) is not None:
            yield f"{message} was confirmed and is not there, and {other} before it is"


def _before(told: Witness, message: Sent) -> Sent | None:
    """One of its publisher that stands before a message and is there: it was not truncated."""
    for who, number in (seen.message for seen in told.log):
        if who == message.who and number < message.number:
            return Sent(who, number)
    return None


def _nothing_is_invented(told: Witness) -> Iterator[str]:
    """durability.md: "P2: in order, without gaps, nothing invented, nothing changed"."""
    for seen in told.log:
        if seen.message not in told.sent:
            yield f"{seen.message} at {seen.offset} was never sent"


def _each_is_in_order(told: Witness) -> Iterator[str]:
    """durability.md: "P3: A message that a named publisher sends again is stored once"."""
    last: dict[str, int] = {}
    for seen in told.log:
        who, number = seen.message
        if who in told.named and number <= last.get(who, -1):
            yield f"{seen.message} at {seen.offset} stands behind {who}:{last[who]}"
        last[who] = max(number, last.get(who, -1))


def _what_survives_has_no_gaps(told: Witness) -> Iterator[str]:
    """durability.md: "P2: What survives a crash is a prefix of what was published"."""
    last: dict[str, int] = {}
    for who, number in (seen.message for seen in told.log):
        before = last.get(who, number - 1 if told.asked else 0)
        left_out = {Sent(who, one) for one in range(before + 1, number)} - told.lost
        if who in told.named and left_out:
            yield f"{Sent(who, number)} is there, and {min(left_out)} before it is not"
        last[who] = number


def _an_offset_means_one_message(told: Witness) -> Iterator[str]:
    """durability.md: "P4: The offset of a message … is never given to another message"."""
    meant: dict[int, Seen] = {}
    everybody = {"the stream": told.log} | {n: f.seen for n, f in told.followers.items()}
    everybody |= {"an old server": told.elsewhere}
    everybody |= {"a search": [seen for found in told.found for seen in found.results]}
    for who, seen in everybody.items():
        for one in seen:
            other = meant.setdefault(one.offset, one)
            if other != one:
                number = f" (edition {one.edition}, {other.edition})"
                yield f"{who} got {one.message} at {one.offset}, others {other.message}{number}"


def _nobody_passes_over(told: Witness) -> Iterator[str]:
    """durability.md: "so no reader passes over a message"; python-client.md, `offset="stored"`."""
    for name, follower in told.followers.items():
        given = {seen.message for seen in follower.seen}
        for seen in told.log:
            if seen.message not in given and follower.wants(seen.message):
                yield f"{name} never got {seen.message} at {seen.offset}"


def _only_what_was_asked_for(told: Witness) -> Iterator[str]:
    """selectors.md: a selector chooses messages, and it is exact."""
    for name, follower in told.followers.items():
        for seen in follower.seen:
            if not follower.wants(seen.message):
                yield f"{name} got {seen.message}, which it did not ask for"


def _each_comes_once(told: Witness) -> Iterator[str]:
    """python-client.md: "reading continues after the last chunk that arrived", from an offset on.

    A program that goes on gets each message once, in order, and none before what it asked for.
    """
    for name, follower in told.followers.items():
        for (number, asked), (end, _) in pairwise([*follower.runs, (len(follower.seen), 0)]):
            before = asked - 1
            for offset, message, _ in follower.seen[number:end]:
                if offset <= before:
                    yield f"{name} got {message} at {offset} behind {before}"
                before = offset


def _what_was_seen_stays(told: Witness) -> Iterator[str]:
    """durability.md: "a power failure never takes back a message that one of them has seen"."""
    if told.flushes != "always" and not told.is_all_in_store:
        return
    there = set(told.log)
    everybody = {name: follower.seen for name, follower in told.followers.items()}
    everybody |= {"an old server's reader": told.elsewhere} if told.is_all_in_store else {}
    for name, given in everybody.items():
        for seen in given:
            is_left = told.was_left(seen.offset) and not told.is_all_in_store
            if seen.offset >= told.asked and seen not in there and not is_left:
                yield f"{name} saw {seen.message} at {seen.offset}, and it is gone"


def _a_search_finds_all(told: Witness) -> Iterator[str]:
    """durability.md: "P12: A search misses no match"; find.md: what is found is exact."""
    for found in told.found:
        names = [seen.message for seen in found.results]
        if any(name != found.message for name in names):
            yield f"a search for {found.message} found {', '.join(map(str, names))}"
        if found.message.who in told.named and len(names) > 1:
            yield f"a search for {found.message} found it {len(names)} times"
        if not names and not told.asked and found.message not in told.lost:
            yield f"a search for {found.message}, confirmed before, found nothing"


def _a_walk_finds_all(told: Witness) -> Iterator[str]:
    """find.md: "A search sees what was there when it began"; durability.md: P12."""
    for walk in told.walks:
        offsets = [seen.offset for seen in walk.results]
        if offsets != sorted(set(offsets), reverse=walk.is_newest_first):
            yield f"a search was not in order, or found one twice: {offsets}"
        found = {seen.message for seen in walk.results}
        if wrong := [one for one in found if not walk.wants(one)]:
            yield f"a search found {wrong[0]}, which it did not ask for"
        if not told.asked and (missed := walk.known - found - told.lost):
            yield f"a search passed over {min(missed)}"


def _what_is_stored_stays(told: Witness) -> Iterator[str]:
    """durability.md: "P6: Stored offsets that the server has reported are there"."""
    for name, answers in told.stored.items():
        if answers and name in told.stored_at_end:
            last, end = answers[-1][1], told.stored_at_end[name]
            if not told.keeps_all and told.log and last < told.log[0].offset:
                continue  # it may have gone with its messages
            if end is None or end < last:
                yield f"{last} was stored for {name}, in the end it was {end}"


def _what_publishers_sent_is_known(told: Witness) -> Iterator[str]:
    """durability.md: "P3: A message that a named publisher sends again is stored once"."""
    certain: dict[str, int] = {}
    for message in told.confirmed.keys() - told.lost if told.sequences else ():
        certain[message.who] = max(message.number, certain.get(message.who, -1))
    for who, number in told.sequences.items():
        if who in certain and certain[who] > (-1 if number is None else number):
            yield f"{certain[who]} of {who} was confirmed, the server says {number}"


def _figures_are_true(told: Witness) -> Iterator[str]:
    """python-client.md: `describe`; messages and offsets are those that a reader finds."""
    if not told.figures or not told.log:
        return
    seen = {"messages": len(told.log), "committed_offset": told.log[-1].offset}
    for name, value in seen.items():
        if told.figures[name] != value:
            yield f"{name} is {told.figures[name]}, a reader finds {value}"
    if lost := told.figures.get("lost_messages"):
        yield f"{lost} messages are said to be damaged, and nothing was"


def _what_is_truncated_stays_away(told: Witness) -> Iterator[str]:
    """durability.md: "P13: What was truncated stays away …, and nothing behind it goes with it"."""
    if told.log and told.log[0].offset < told.begin:
        yield f"offset {told.log[0].offset} is there, the stream was to begin at {told.begin}"
    behind = {
        seen.message
        for follower in told.followers.values()
        for seen in follower.seen
        if seen.offset >= told.asked
    }
    there = {seen.message for seen in told.log}
    for message in (behind & told.confirmed.keys()) - there - told.lost:
        yield f"{message} stood behind all that was truncated, and is gone"


def _a_consumer_goes_on_where_it_was(told: Witness) -> Iterator[str]:
    """python-client.md: "consumers continue after the last message that they had"."""
    for block in told.blocks:
        offsets = [seen.offset for seen in block.seen]
        for before, after in itertools.pairwise(offsets):
            if after <= before:
                yield f"{block.name} got {after} after {before}"
        given = set(offsets)
        for seen in told.log:
            if given and min(given) < seen.offset < max(given) and seen.offset not in given:
                yield f"{block.name} had no {seen.message} at {seen.offset} in between"


def _what_is_stored_is_confirmed(told: Witness) -> Iterator[str]:
    """operating.md: "what has arrived is stored and confirmed", when the server ends in order."""
    for seen in told.log:
        if seen.message in told.unconfirmed:
            yield f"{seen.message} at {seen.offset} is there, and was not confirmed at the end"


_AT_ANY_TIME = (
    _nothing_confirmed_is_lost,
    _nothing_is_invented,
    _each_is_in_order,
    _an_offset_means_one_message,
    _what_was_seen_stays,
    _what_is_stored_stays,
    _what_publishers_sent_is_known,
    _what_is_truncated_stays_away,
)
PROMISES: dict[str, Callable[[Witness], Iterator[str]]] = {
    "nothing confirmed is lost": _nothing_confirmed_is_lost,
    "nothing is invented": _nothing_is_invented,
    "each publisher's messages are in order, once": _each_is_in_order,
    "what survives has no gaps": _what_survives_has_no_gaps,
    "an offset means one message": _an_offset_means_one_message,
    "nobody passes over a message": _nobody_passes_over,
    "only what was asked for": _only_what_was_asked_for,
    "each comes once": _each_comes_once,
    "what was seen stays": _what_was_seen_stays,
    "a search finds all": _a_search_finds_all,
    "a walk finds all": _a_walk_finds_all,
    "what is stored stays": _what_is_stored_stays,
    "figures are true": _figures_are_true,
    "what is truncated stays away": _what_is_truncated_stays_away,
    "a consumer goes on where it was": _a_consumer_goes_on_where_it_was,
    "what is stored is confirmed": _what_is_stored_is_confirmed,
}
