"""Random commands, made from the declared field types."""

from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from streamd.wire.stream import commands as c, fields as f, subscribe_properties as words

TEXT = st.text(max_size=12)
U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
I64 = st.integers(-(2**63), 2**63 - 1)
MAP = st.lists(st.builds(f.Pair, TEXT, TEXT), max_size=3).map(tuple)
FILTERS = st.lists(
    st.builds(f.Pair, TEXT.map("filter.".__add__), st.binary(max_size=12).map(words.text_of)),
    max_size=2,
).map(tuple)
STRINGS = st.lists(TEXT, max_size=3).map(tuple)
OFFSETS = (
    st.sampled_from([0, 1, 2, 3]).map(f.OffsetSpecification)
    | st.builds(f.OffsetSpecification, st.just(4), U64)
    | st.builds(f.OffsetSpecification, st.just(5), I64)
)

BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    f.U8: U8,
    f.U16: U16,
    f.U32: U32,
    f.U64: U64,
    f.String: TEXT,
    f.Bytes: st.binary(max_size=20),
    f.Rest: st.binary(max_size=40),
    f.Strings: STRINGS,
    f.Names: STRINGS,
    f.StringsToEnd: STRINGS,
    f.Map: MAP,
    f.MapToEnd: MAP,
    f.OptionalMap: MAP,
    f.SubscribeMap: st.tuples(MAP, FILTERS).map(lambda parts: parts[0] + parts[1]),
    f.Maps: st.lists(MAP, max_size=2).map(tuple),
    f.OffsetSpec: OFFSETS,
    f.Versions: st.lists(st.builds(f.CommandVersions, U16, U16, U16), max_size=3).map(tuple),
    f.Brokers: st.lists(st.builds(f.BrokerAddress, U16, TEXT, U32), max_size=2).map(tuple),
    f.StreamsMetadata: st.lists(
        st.builds(f.StreamMetadata, TEXT, U16, U16, st.lists(U16, max_size=2).map(tuple)),
        max_size=2,
    ).map(tuple),
    f.Statistics: st.lists(st.builds(f.Statistic, TEXT, I64), max_size=3).map(tuple),
    f.Descriptions: st.lists(
        st.builds(
            f.StreamDescription,
            TEXT,
            U16,
            MAP,
            st.lists(st.builds(f.Statistic, TEXT, I64), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    f.FoundMessages: st.lists(
        st.builds(f.FoundMessage, U64, I64, st.binary(max_size=20)), max_size=2
    ).map(tuple),
    f.PublishingIds: st.lists(U64, max_size=4).map(tuple),
    f.PublishFaults: st.lists(st.builds(f.PublishFault, U64, U16), max_size=3).map(tuple),
}

KINDS: list[type[Any]] = sorted(get_args(c.Command), key=lambda kind: kind.__name__)


def of_kind(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, *(BY_TYPE[hints[name]] for name in kind.__struct_fields__))


COMMANDS: st.SearchStrategy[c.Command] = st.one_of(map(of_kind, KINDS))
