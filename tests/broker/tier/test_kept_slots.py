"""Slots that a start would read: what is in them, and where logs begin without some."""

from hypothesis import example, given, strategies

from segments.store.cluster import WalMark
from segments.store.object_names import StreamKey
from segments.store.wal import Section, Slot, slot_key
from streamd.broker.tier.kept_slots import KeptSlots


def _slot(epoch: int, number: int, streams: list[int]) -> Slot:
    sections = tuple(
        Section(
            virtual_host="/",
            stream=f"s{stream}",
            creation="a1",
            after=number,
            next_offset=number + 1,
            arguments={},
            settings={},
            offsets={"61": number} if stream % 2 else {},
        )
        for stream in streams
    )
    return Slot(tier="t", epoch=epoch, slot=number, writer="w", sections=sections)


@given(
    strategies.lists(strategies.lists(strategies.integers(0, 5), unique=True, max_size=4)),
    strategies.lists(strategies.integers(0, 3)),
)
@example([[0], [1, 2], [3], [3]], [0, 0, 1, 0])  # a new stream after one that is gone
def test_it_knows_what_is_left(slots: list[list[int]], drops: list[int]) -> None:
    kept, left, pending = KeptSlots(), [], list(drops)
    for number, streams in enumerate(slots):
        kept.add(_slot(1, number, streams), 10)
        left.append((number, streams))
        if pending:
            count = min(pending.pop(), len(left))
            kept.drop(count)
            del left[:count]
            assert {key.stream for key in kept.ends} == {f"s{s}" for _, some in left for s in some}
        assert (len(kept), kept.num_bytes) == (len(left), 10 * len(left))
        for stream in range(6):
            wanted = {slot_key(1, one) for one, some in left if stream in some}
            assert kept.keys_of(StreamKey("/", f"s{stream}", "a1")) == wanted


def test_logs_without_slots_are_named_no_more_but_for_the_present_one() -> None:
    kept = KeptSlots()
    for epoch, number in ((1, 4), (1, 5), (3, 0), (3, 1)):
        kept.add(_slot(epoch, number, [1]), 10)
    marks = (WalMark(1, 4), WalMark(2, 0), WalMark(3, 0))
    assert kept.marks_without(1, marks, 3) == (WalMark(1, 5), WalMark(3, 0))
    assert kept.marks_without(3, marks, 3) == (WalMark(3, 1),)
    assert kept.marks_without(4, marks, 5) == ()
