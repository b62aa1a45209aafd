"""Columns of chunks: what is told of each message, after damage, to who knows them or not."""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

from hypothesis import example, given, strategies as st

from segments import ChunkBuilder, LogPolicy, codec
from segments.chunk import EncodedChunk
from segments.columns import (
    Columns,
    Opened,
    ValueTest,
    open_rows,
    places_of,
    sound_columns,
)
from segments.errors import FormatError
from segments.format_constants import COLUMNS, FILTER_VALUE, SEQUENCE
from segments.property_keys import key_of, mark_of, plain_key
from tests.support.logs import entry, sub_batch

NAMES = ("region", "kind")
# Values that look like blocks, keys and marks, and so many that an ordinal has more than a byte.
ODD = (b"", b"a", b"b", b"\x03\x01a", b"\0\0kind", b"\0\0kind\0a", b"\0\0\0a", b"\x02", b"a" * 255)
VALUES = st.one_of(st.sampled_from(ODD), st.integers(0, 700).map(lambda n: b"v%d" % n))


def build(
    plain: Sequence[bytes],
    further: Sequence[Sequence[bytes]] = (),
    *,
    bodies: Sequence[bytes] | None = None,
    frame: int = 7,
    publisher: bytes = b"",
) -> EncodedChunk:
    """A chunk of messages with these values, in frames of a few."""
    builder = filled(plain, further, bodies, frame)
    if publisher:
        builder.set_sequence(publisher, 5)
    return builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=LogPolicy())


def filled(
    plain: Sequence[bytes],
    further: Sequence[Sequence[bytes]] = (),
    bodies: Sequence[bytes] | None = None,
    frame: int = 7,
) -> ChunkBuilder:
    """The same before it is encoded."""
    builder = ChunkBuilder()
    marks = tuple(mark_of(name) for name in NAMES[: len(further)])
    bodies = [b"%d" % n for n in range(len(plain))] if bodies is None else bodies
    for at in range(0, len(plain), frame):
        part = slice(at, at + frame)
        values = [plain_key(value) if marks else value for value in plain[part]]
        keys = tuple(
            [key_of(name, value) for value in values[part]]
            for name, values in zip(NAMES, further, strict=False)
        )
        data = b"".join(map(entry, bodies[part]))
        builder.add(data, len(values), len(values), values, marks, keys)
    return builder


@given(st.lists(st.integers(0, 90), min_size=1, max_size=200), st.integers(1, 40))
def test_ends_that_are_told_are_those_that_are_found(sizes: list[int], frame: int) -> None:
    """The same bytes, whether all, some or none of the frames say where their messages end."""
    made = []
    for known in (lambda _: True, lambda n: n % 2, lambda _: False):
        builder = ChunkBuilder()
        for number, at in enumerate(range(0, len(sizes), frame)):
            part = sizes[at : at + frame]
            data = b"".join(entry(b"x" * size) for size in part)
            values = [b"%d" % (size % 3) for size in part]
            ends = list(accumulate(size + 4 for size in part)) if known(number) else None
            builder.add(data, len(part), len(part), values, ends=ends)
        policy = LogPolicy()
        made.append(builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=policy).parts)
    assert made[0] == made[1] == made[2]


def columns_of(chunk: EncodedChunk) -> Columns | None:
    return sound_columns(chunk.parts[0], chunk.parts[2], chunk.header)


def rows_of(places: Sequence[int], count: int) -> int:
    return reduce(lambda rows, place: rows | 1 << count - 1 - place, places, 0)


@st.composite
def properties(draw: st.DrawFn) -> list[list[bytes]]:
    """Values of the first property, and of up to two further ones, for a chunk."""
    count = draw(st.sampled_from((1, 2, 3, 16, 31, 32, 33, 64, 100, 700)))
    some = st.lists(VALUES, min_size=1, max_size=6)
    found = []
    for _ in range(draw(st.integers(1, 3))):
        among, seed = draw(some), draw(st.randoms(use_true_random=False))
        found.append([seed.choice(among) for _ in range(count)])
    if draw(st.booleans()):
        found[-1] = [b"w%d" % (n % 600) for n in range(count)]
    return found


@given(properties(), st.data())
def test_each_message_has_the_value_it_came_with(
    values: list[list[bytes]], data: st.DataObject
) -> None:
    plain, *further = values
    columns = columns_of(build(plain, further, publisher=data.draw(st.sampled_from((b"", b"p")))))
    new = filled(plain, further).columns
    if columns is None:  # no filter, or values that are not recorded as they are
        keys = [key_of("region", value) for own in further for value in own]
        has_long = any(len(key) >= 255 for key in [*plain, *keys])
        assert has_long or not (further or any(plain))
        return
    marks = (None, *map(mark_of, NAMES))
    for mark, own in zip(marks, values, strict=False):
        listed = [
            (plain_key(value) if further else value) if mark is None else mark + b"\0" + value
            for value in own
        ]
        assert columns.values_of(mark) == listed
        wanted = data.draw(st.lists(st.one_of(st.sampled_from(own), VALUES), max_size=4))
        for is_complement in (False, True):
            asked = ValueTest(mark, wanted, is_complement=is_complement)
            found = columns.rows(asked)
            assert found is not None
            assert places_of(found, len(own)) == [
                place for place, value in enumerate(own) if (value in wanted) is not is_complement
            ]
            assert new is not None
            assert new.rows(asked) == found
    unknown = ValueTest(mark_of("other"), [b"a"], is_complement=False)
    assert columns.rows(unknown) is None
    assert new is None or new.rows(unknown) is None


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=200),
    st.data(),
)
@example([b"x"] * 300, None)
@example([b"x" * 5_000] * 40, None)  # too far from each other: their places are not told
def test_messages_are_opened_where_they_begin(
    bodies: list[bytes], data: st.DataObject | None
) -> None:
    count = len(bodies)
    columns = columns_of(chunk := build([b"%d" % (n % 3) for n in range(count)], bodies=bodies))
    assert columns is not None
    read: list[int] = []

    def read_data(size: int, position: int) -> bytes:
        read.append(size)
        return chunk.parts[1][position : position + size]

    some = st.lists(st.integers(0, count - 1), unique=True).map(sorted)
    for places in ([], [0], [count - 1], list(range(count)), data.draw(some) if data else [1]):
        found = open_rows(columns, rows_of(places, count), len(chunk.parts[1]), read_data)
        assert found.places == places
        assert found.data == b"".join(entry(bodies[place]) for place in places)
        assert found.ends == (codec.simple_ends(found.data) if places else [])
    if columns.begins:  # of one message only what is around it
        read.clear()
        open_rows(columns, rows_of([count - 1], count), len(chunk.parts[1]), read_data)
        assert sum(read) <= sum(len(body) + 4 for body in bodies[-(count % 32 or 32) :])


def test_who_does_not_know_them_is_not_disturbed() -> None:
    plain = [b"%d" % (n % 10) for n in range(100)]
    chunk = build(plain, [[b"r"] * 100], publisher=b"p")
    blocks = codec.decode_blocks(chunk.parts[2])
    kinds = [block.kind for block in blocks]
    assert kinds == sorted(kinds, key=(COLUMNS, SEQUENCE, FILTER_VALUE).index)
    assert [(b.id, b.value) for b in blocks if b.kind == SEQUENCE] == [(b"p", 5)]
    counts = Counter({b.id: b.value for b in blocks if b.kind == FILTER_VALUE})
    assert counts == Counter([*plain, *[key_of("region", b"r")] * 100, *[mark_of("region")] * 100])


def test_they_take_as_few_bits_as_there_are_values() -> None:
    for values, bits in ((2, 1), (3, 2), (4, 2), (100, 7), (300, 9)):
        count = 1_000
        own = [b"%d" % (n % values) for n in range(count)]
        blocks = codec.decode_blocks(build(own, bodies=[b"x"] * count).parts[2])
        size = sum(10 + len(block.id) for block in blocks if block.kind == COLUMNS)
        told = bits * count / 8 + 2 * (count // 32)
        assert told <= size <= 1.03 * told + 30


def test_chunks_without() -> None:
    """Packed messages; frames of before and after a declaration; no history; too long values."""
    assert columns_of(build([b"a", b"b" * 256] * 20)) is None
    assert columns_of(build([b"b" * 256] * 20)) is None  # what is listed is not its value
    assert columns_of(build([b"b" * 255] * 20)) is None  # which may be such, too
    packed = ChunkBuilder()
    packed.add(sub_batch(b"x", 40, 1, 4), 1, 40, Counter({b"a": 20, b"b": 20}))
    uneven = ChunkBuilder()
    uneven.add(entry(b"x") * 20, 20, 20, [b"a", b"b"] * 10)
    uneven.add(entry(b"x"), 1, 1, [b"a"], (mark_of("kind"),), ([key_of("kind", b"a")],))
    plain = ChunkBuilder()
    plain.add(entry(b"x") * 20, 20, 20, [b"a", b"b"] * 10)
    for builder, policy in (
        (packed, LogPolicy()),
        (uneven, LogPolicy()),
        (plain, LogPolicy(filter_history=False)),
    ):
        chunk = builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=policy)
        assert columns_of(chunk) is None


def test_where_all_are_equal_the_list_says_so() -> None:
    chunk = build([b"a"] * 20, [[b""] * 20, [b"k"] * 20], publisher=b"p")
    assert COLUMNS not in [block.kind for block in codec.decode_blocks(chunk.parts[2])]
    columns = columns_of(chunk)
    assert columns is not None
    everything = (1 << 20) - 1
    for mark, value in ((None, b"a"), (mark_of("region"), b""), (mark_of("kind"), b"k")):
        assert columns.rows(ValueTest(mark, [value], is_complement=False)) == everything
        assert columns.rows(ValueTest(mark, [b"b"], is_complement=False)) == 0
        assert columns.rows(ValueTest(mark, [value], is_complement=True)) == 0


@given(properties(), st.data())
def test_damage_costs_the_speed_only(values: list[list[bytes]], data: st.DataObject) -> None:
    plain, *further = values
    chunk = build(plain, further)
    head, body, trailer = chunk.parts
    if columns_of(chunk) is None:
        return
    at = data.draw(st.integers(0, len(trailer) - 1))
    flip = data.draw(st.integers(1, 255))
    cut = data.draw(st.booleans())
    wrong = trailer[:at] if cut else trailer[:at] + bytes((trailer[at] ^ flip,)) + trailer[at + 1 :]
    assert sound_columns(head, wrong, chunk.header) is None
    # Even past the check, what is wrong is an answer or none, or a message that cannot be there.
    columns = Columns.parse(wrong, len(plain))
    if columns is None:
        return
    for mark in (None, *map(mark_of, NAMES)):
        for wanted in ([b"a"], [b"a", b"b", b"v1", b""]):
            rows = columns.rows(ValueTest(mark, wanted, is_complement=False))
            assert rows is None or 0 <= rows < 1 << len(plain)
    try:
        found = open_rows(
            columns, 1, len(body), lambda size, position: body[position : position + size]
        )
    except FormatError:
        return
    assert isinstance(found, Opened)
