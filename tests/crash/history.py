"""What clients of a cluster were told, and what has to be true of it whatever was harmed.

Each check is one function, in the manner of Jepsen:

    confirmed_once          of a publisher with a name all that was confirmed is there, once and in
                            its order, and nothing is missing before what else is there
    confirmed_at_all        of RabbitMQ's client, which does not send again what was not confirmed,
                            all that was confirmed is there
    ascending               and with a name nothing is doubled, or out of its order
    one_message_an_offset   whoever reads an offset, at any node and at any time, gets one message:
                            of two leaders that both confirm one would give another one
    nothing_read_is_gone    what a consumer was given stays there
    uploaded_is_kept        of a stream that is confirmed by one machine the same, as far as the
                            store had it
    gaps_are_whole          offsets are in order, and those between two messages are gaps, not lost
    passes_over_nothing     what is before an offset that a consumer has stored, it was given
    stored_stays            a stored offset is never before one that was answered as stored
    declared_is_there       what was declared is there, and what was deleted is not

Confirms of all leaders count, also of one that was paused and has been taken over: what it has
confirmed behind its end would be missing.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from segments.gaps import num_lost


class Found(NamedTuple):
    """A message that was read.

    Attributes:
        offset: of it.
        publisher: who has published it; empty where its text does not say so.
        number: that the publisher has given it.
    """

    offset: int
    publisher: str
    number: int


def found(offset: int, body: bytes) -> Found:
    """A message by its text: its number, and a publisher."""
    number, *rest = body.split(maxsplit=2)
    return Found(offset, rest[0].decode() if rest else "", int(number))


class History:
    """What was told of one stream.

    Attributes:
        seen: each message that somebody was given, by its offset.
        confirmed: by publishers with a name, the highest number that was confirmed.
        single: numbers that were confirmed to RabbitMQ's client.
        handled: offsets that the consumer was given that stores them.
        answered: the highest of its offsets that was answered as stored; -1 for none.
        gone: offsets of messages that were lost with their machine, as is stated.
    """

    def __init__(self) -> None:
        self.seen: dict[int, Found] = {}
        self.confirmed: dict[str, int] = {}
        self.single: set[int] = set()
        self.handled: set[int] = set()
        self.answered = -1
        self.gone: set[int] = set()

    def confirm(self, publisher: str, number: int) -> None:
        """All up to a number were confirmed to a publisher with a name."""
        self.confirmed[publisher] = max(number, self.confirmed.get(publisher, 0))

    def take(self, message: Found) -> None:
        """A message was read; see one_message_an_offset."""
        one_message_an_offset(message, self.seen)
        self.seen[message.offset] = message

    def there(self) -> dict[int, Found]:
        """What was seen, and is not lost."""
        return {at: one for at, one in self.seen.items() if at not in self.gone}


def one_message_an_offset(message: Found, seen: Mapping[int, Found]) -> None:
    """See above."""
    known = seen.get(message.offset, message)
    assert known == message, f"{message}, where {known} was"


def confirmed_once(messages: Iterable[Found], confirmed: Mapping[str, int]) -> None:
    """See above.

    Args:
        messages: all that are there.
        confirmed: by publishers, the highest number that was confirmed.
    """
    following: dict[str, int] = {}
    for message in messages:
        expected = following.get(message.publisher, 1)
        assert message.number == expected, f"{message}, and {expected} was to come"
        following[message.publisher] = expected + 1
    for publisher, number in confirmed.items():
        end = following.get(publisher, 1) - 1
        assert end >= number, f"{number} of {publisher} was confirmed, and {end} is last"


def confirmed_at_all(messages: Iterable[Found], confirmed: Set[int]) -> None:
    """See above."""
    missing = confirmed - {message.number for message in messages}
    assert not missing, f"{sorted(missing)[:5]} were confirmed, and are not there"


def ascending(messages: Iterable[Found]) -> None:
    """See above."""
    for one, after in pairwise(messages):
        assert one.number < after.number, f"{after} comes after {one}"


def nothing_read_is_gone(messages: Iterable[Found], seen: Mapping[int, Found]) -> None:
    """See above; `seen` is what was read before `messages` were."""
    missing = seen.keys() - {message.offset for message in messages}
    assert not missing, f"{sorted(missing)[:5]} were read, and are gone"


def uploaded_is_kept(messages: Iterable[Found], seen: Mapping[int, Found], end: int) -> None:
    """See above; the store had all before `end`."""
    nothing_read_is_gone(messages, {at: one for at, one in seen.items() if at < end})


def gaps_are_whole(messages: Sequence[Found]) -> None:
    """See above."""
    for one, after in pairwise(messages):
        assert one.offset < after.offset, f"{after} comes after {one}"
        lost = num_lost(one.offset + 1, after.offset)
        assert not lost, f"{lost} messages between {one} and {after} are missing"


def passes_over_nothing(messages: Iterable[Found], handled: Set[int], stored: int) -> None:
    """See above."""
    passed = {one.offset for one in messages if one.offset <= stored} - handled
    assert not passed, f"{stored} is stored, and {sorted(passed)[:5]} were never handed out"


def stored_stays(stored: int, answered: int) -> None:
    """See above."""
    assert stored >= answered, f"{answered} was answered as stored, and {stored} is"


def declared_is_there(there: Set[str], declared: Set[str], deleted: Set[str]) -> None:
    """See above."""
    missing, left = declared - there, deleted & there
    assert not missing, f"{sorted(missing)} were declared, and are not there"
    assert not left, f"{sorted(left)} were deleted, and are there"
