"""Everybody who asks for the filter value of a message gets the same one.

The server's contract, and a selector that asks for the value; and by the rule for readers, who
take numbers as well, the client library, the command line, the Spark source and tuning.
"""

import warnings
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql import SparkSession

from clients.filters import ArrivedChunk, Filter
from segments import ChunkBuilder, Log, LogPolicy, bloom
from segments.columns import Columns, sound_columns
from segments.entries import Entries
from segments.message import Message, MessageView
from segments.selector import (
    Budget,
    MatcherSet,
    NumberRule,
    filter_value_of,
    parse_sql,
)
from segments.spark.options import values_text
from segments.spark.scanning import scan
from segments.spark.tuning import tune
from streamd.broker.declared.filter_contract import FilterContract
from streamd.cli.filter_property import FilterProperty
from tests.segments.spark.test_decoding import rows
from tests.segments.spark.test_tuning import histories, sets_of
from tests.support.logs import append, entry
from tests.support.odd_messages import LONG, VALUES, WANTED, OddMessage, odd_messages

NAMES = ("region", "properties.subject")
MODES = [(name, unfiltered) for name in NAMES for unfiltered in (False, True)]
Streams: TypeAlias = dict[tuple[str, bool, bool], str]
REPEATED = 9  # Spark's source looks at messages together where there are enough of a kind


def of_server(name: str, raws: Sequence[bytes]) -> list[bytes]:
    """What the server writes into the filter of a stream that derives."""
    contract = FilterContract([name], is_strict=False, derives=True)
    data = b"".join(map(entry, raws))
    ids = b"".join(n.to_bytes(8, "big") for n in range(len(raws)))
    checked = contract.check(Entries(ids, data, len(raws), len(raws), None))
    assert checked.entries is not None
    assert checked.entries.filter_values is not None
    return list(checked.entries.filter_values)


def columns_of(data: bytes, values: Sequence[bytes]) -> Columns:
    """Those of a chunk of messages with these filter values."""
    builder = ChunkBuilder()
    builder.add(data, len(values), len(values), values)
    chunk = builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=LogPolicy())
    columns = sound_columns(chunk.parts[0], chunk.parts[2], chunk.header)
    assert columns is not None
    return columns


def sql_for(name: str, value: bytes) -> str:
    return f"{name} = 0x{value.hex()}"


def is_wanted(odd: OddMessage, wanted: bytes, *, unfiltered: bool, numbers: NumberRule) -> bool:
    """The rule for readers, in other words than theirs."""
    value = odd.derived if numbers is NumberRule.NO_VALUE else odd.text
    has_none = not value or (odd.is_number and numbers is NumberRule.EITHER)
    return value == wanted or (unfiltered and has_none)


@pytest.mark.parametrize("name", NAMES)
def test_the_server_derives_what_is_written_down(name: str) -> None:
    found = odd_messages(name)
    assert of_server(name, [odd.raw for odd in found]) == [odd.derived for odd in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_publishes_what_readers_compare_with(name: str) -> None:
    for odd in odd_messages(name):
        assert (FilterProperty(name).value(odd.raw) or b"") == odd.text


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_contract_takes_these_values_and_no_others(name: str) -> None:
    contract = FilterContract([name], is_strict=True, derives=False)
    for raw, value, _ in odd_messages(name):
        right = Entries(bytes(8), entry(raw), 1, 1, [value])
        assert not contract.check(right).refused_ids
        assert contract.check(right._replace(filter_values=[value + b"!"])).refused_ids


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("numbers", NumberRule)
@pytest.mark.parametrize(("name", "unfiltered"), MODES)
def test_the_client_hands_out_the_messages_with_a_value(
    name: str, unfiltered: bool, numbers: NumberRule, by_columns: bool
) -> None:
    found = odd_messages(name)
    if by_columns:  # which have no longer values
        found = [odd for odd in found if max(len(odd.derived), len(odd.text)) <= 255]
    data = b"".join(entry(odd.raw) for odd in found)
    chunk = ArrivedChunk("s", 0, 0, data, 0, len(found))
    values = [odd.text if numbers is NumberRule.TEXT else odd.derived for odd in found]
    ways = (None, columns_of(data, values)) if by_columns else (None,)
    for wanted in WANTED:
        expected = [
            n
            for n, odd in enumerate(found)
            if is_wanted(odd, wanted, unfiltered=unfiltered, numbers=numbers)
        ]
        num_others = set()
        for columns in ways:
            chosen = Filter([wanted], unfiltered, name)
            chosen.numbers = numbers
            picked = chosen.pick(chunk._replace(columns=columns))
            assert [message.offset for message in picked.wanted] == expected
            assert picked.asked == len(found)
            num_others.add(chosen.num_others)
        assert len(num_others) == 1


@pytest.mark.parametrize("numbers", NumberRule)
@pytest.mark.parametrize("unfiltered", [False, True])
def test_a_function_is_taken_as_the_property_would_be(
    unfiltered: bool, numbers: NumberRule
) -> None:
    """And a character, which is a text to the program and none to the server, as a number is."""
    messages = dict(zip(VALUES, odd_messages("region"), strict=False))
    messages["char"] = messages["char"]._replace(text=b"E")
    messages["half a char"] = messages["half a char"]._replace(text="\ufffd".encode())
    data = b"".join(entry(odd.raw) for odd in messages.values())
    chunk = ArrivedChunk("s", 0, 0, data, 0, len(messages))
    for wanted in (*WANTED, b"E", "\ufffd".encode()):
        chosen = Filter([wanted], unfiltered, lambda m: m.application_property("region"))
        chosen.numbers = numbers
        expected = [
            n
            for n, odd in enumerate(messages.values())
            if is_wanted(odd, wanted, unfiltered=unfiltered, numbers=numbers)
        ]
        assert [message.offset for message in chosen.pick(chunk).wanted] == expected


@pytest.mark.parametrize("name", NAMES)
def test_selectors_find_the_same_messages(name: str) -> None:
    found = odd_messages(name)
    raws = [odd.raw for odd in found]
    selectors = {value: parse_sql(sql_for(name, value)) for value in WANTED}
    for value, selector in selectors.items():
        expected = [n for n, odd in enumerate(found) if odd.derived == value]
        assert selector.matcher().select(raws) == expected
        pushed = selector.push_down([name], is_strict=True)
        assert pushed.values == {value}
    for raw, value, _ in found:
        assert MatcherSet(selectors).matching([raw], Budget(10**9)) == ({value} if value else set())


def test_a_view_of_a_message_reads_the_same() -> None:
    for kind, (raw, value, _) in zip(VALUES, odd_messages("region"), strict=False):
        if kind == "string, not UTF-8":
            continue  # an error
        view = MessageView(raw)
        assert filter_value_of(view.application_property("region")) == value
        assert filter_value_of(view.application_properties.get("region")) == value
    for raw, value, _ in odd_messages("region")[len(VALUES) :]:
        view = MessageView(raw)
        if view.is_amqp:
            assert filter_value_of(view.application_property("region")) == value
        if view.is_amqp and raw.count(b"region") == 1:
            assert filter_value_of(view.application_properties.get("region")) == value


def stored(name: str, *, all_text: bool) -> list[OddMessage]:
    """The messages of a stream.

    Args:
        name: of the filter property.
        all_text: leave out the one with a string that is not UTF-8: beside it the source looks at
            all messages one by one.
    """
    found = odd_messages(name)
    odd = list(VALUES).index("string, not UTF-8")
    kept = [message for n, message in enumerate(found) if n != odd or not all_text]
    return kept * REPEATED


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """Streams by filter property, all_text, and whether the server derives the filter values.

    On the others they were published as `streamd publish` does where it knows of no contract.
    """
    made = {}
    for name, all_text, derives in product(NAMES, (False, True), (False, True)):
        folder = tmp_path_factory.mktemp("streams") / name.replace(".", "-")
        log = Log.open(str(folder), LogPolicy(filter_size=255))
        messages = stored(name, all_text=all_text)
        for first in range(0, len(messages), 40):
            some = messages[first : first + 40]
            append(
                log,
                [odd.raw for odd in some],
                [odd.derived if derives else odd.text for odd in some],
            )
        log.close()
        made[name, all_text, derives] = str(folder)
    return made


def expected_offsets(
    name: str,
    wanted: bytes,
    *,
    all_text: bool,
    unfiltered: bool = False,
    numbers: NumberRule = NumberRule.TEXT,
) -> list[int]:
    return [
        n
        for n, odd in enumerate(stored(name, all_text=all_text))
        if is_wanted(odd, wanted, unfiltered=unfiltered, numbers=numbers)
    ]


@pytest.mark.parametrize(
    ("name", "unfiltered", "all_text", "contract"),
    [  # each two of them meet
        (NAMES[0], False, False, None),
        (NAMES[1], True, True, None),
        (NAMES[0], True, True, "lenient"),
        (NAMES[1], False, False, "lenient"),
        (NAMES[0], False, True, "strict"),
        (NAMES[1], True, False, "strict"),
    ],
)
def test_the_source_gives_the_messages_with_a_value(
    streams: Streams, name: str, unfiltered: bool, all_text: bool, contract: str | None
) -> None:
    """A number that is asked for by its text comes whether its publisher gave that value or not."""
    rule = {None: NumberRule.TEXT, "strict": NumberRule.NO_VALUE}.get(contract, NumberRule.EITHER)
    for wanted in WANTED:
        found = rows(
            streams[name, all_text, contract is not None],
            columns="offset",
            filterValues=values_text([wanted]),
            filterProperty=name,
            filterContract=contract or "lenient",
            matchUnfiltered=str(unfiltered),
        )
        offsets = [row["offset"] for row in found]
        expected = expected_offsets(
            name, wanted, all_text=all_text, unfiltered=unfiltered, numbers=rule
        )
        assert offsets == expected, wanted


def test_through_spark(spark: SparkSession, streams: Streams) -> None:
    values = [b"\xff\x00", "é".encode()]  # on their way to Spark they are JSON in an option
    expected = [n for v in values for n in expected_offsets("region", v, all_text=True)]
    folder = streams["region", True, True]
    wanted = [values[0], "é"]
    by_value = scan(
        spark,
        folder,
        values=wanted,
        value_property="region",
        columns=["offset"],
        properties="`region` string",
    )
    assert sorted(row.offset for row in by_value.collect()) == sorted(expected)
    sql = " OR ".join(sql_for("region", value) for value in values)
    by_sql = scan(spark, folder, sql=sql, columns=["offset"])
    assert sorted(row.offset for row in by_sql.collect()) == sorted(expected)


@pytest.mark.parametrize("unfiltered", [False, True])
def test_numbers_through_spark(spark: SparkSession, tmp_path: Path, unfiltered: bool) -> None:
    """Published as `str(n)`; and it is said that they are not in the column of strings."""
    log = Log.open(str(tmp_path))
    messages = [Message(application_properties={"n": n}).encode() for n in [5, 6] * 5]
    for _ in range(10):
        append(log, messages, [b"5", b"6"] * 5)
    log.close()
    options = {"values": ["5"], "value_property": "n", "match_unfiltered": unfiltered}
    with pytest.warns(UserWarning, match="property n has numbers"):
        found = scan(spark, str(tmp_path), **options)
    assert found.count() == 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scan(spark, str(tmp_path), **options, properties="n bigint")
    assert {row.n for row in found.collect()} == {5}


@pytest.mark.parametrize("unfiltered", [False, True])
def test_numbers_that_were_published_with_and_without_values(
    tmp_path: Path, unfiltered: bool
) -> None:
    """With or without a history in the trailers; what may lack its value is not lost."""
    raws = [Message(application_properties={"n": n}).encode() for n in (5, 6, "6")]
    log = Log.open(str(tmp_path))
    append(log, raws, None)  # 0 to 2: nobody has a value
    append(log, raws, [b"5", b"6", b"6"])  # 3 to 5
    append(log, raws, [b"5", b"", b"6"])  # 6 to 8: as a server derives, but for 5
    log.close()
    found = rows(
        str(tmp_path),
        columns="offset",
        filterValues='["5"]',
        filterProperty="n",
        matchUnfiltered=str(unfiltered),
    )
    assert [row["offset"] for row in found] == ([0, 1, 3, 6, 7] if unfiltered else [0, 3, 6])


@pytest.mark.parametrize("contract", ["lenient", "strict"])
def test_numbers_come_whatever_chunk_they_stand_in(tmp_path: Path, contract: str) -> None:
    """Filter values as a server derives them: a number has none."""
    values = ["5", 5, 5.5, "x", True, "true", 6, None, "5.5", False]
    raws = [Message(application_properties={"n": value}).encode() for value in values]
    derived = [value.encode() if isinstance(value, str) else b"" for value in values]
    for wanted in ("5", "5.5", "true", "x"):
        found = []
        for size in range(1, len(values) + 1):
            folder = tmp_path / f"{wanted}-{size}"
            log = Log.open(str(folder))
            for first in range(0, len(values), size):
                append(log, raws[first : first + size], derived[first : first + size])
            log.close()
            result = rows(
                str(folder),
                columns="offset",
                filterValues=values_text([wanted]),
                filterProperty="n",
                filterContract=contract,
            )
            found.append([row["offset"] for row in result])
        numbers = {"5": [1], "5.5": [2], "true": [4]}.get(wanted, [])
        text = values.index(wanted)
        expected = sorted([text, *(numbers if contract == "lenient" else [])])
        assert found == [expected] * len(values), wanted


def test_everything_can_be_shown(streams: Streams) -> None:
    """All columns, of every type of value: Spark takes no half characters."""
    for (name, all_text, _), folder in streams.items():
        found = rows(folder, properties="`region` string")
        assert len(found) == len(stored(name, all_text=all_text))


def test_tuning_reads_the_same_from_messages_as_from_trailers(streams: Streams) -> None:
    """Where these have the values that readers compare with."""
    for (name, all_text, derives), folder in streams.items():
        from_messages = sets_of(histories(Path(folder), name))
        assert derives or from_messages == sets_of(histories(Path(folder)))
        for value in set(WANTED) - {b"none"}:
            form = bloom.history_form(value)
            expected = expected_offsets(name, value, all_text=all_text)
            assert sum(chunk.get(form, 0) for chunk in from_messages) == len(expected)


def test_tuning_knows_long_values(spark: SparkSession, tmp_path: Path) -> None:
    """A value of more than 255 bytes, which all chunks have, is delivered and never skipped."""
    log = Log.open(str(tmp_path))
    raw = next(odd.raw for odd in odd_messages("region") if odd.derived == LONG)
    for _ in range(5):
        append(log, [raw] * 3)
    log.close()
    found = tune(
        spark,
        str(tmp_path),
        workload={LONG.decode(): 1.0},
        filter_property="region",
        keep_limit=True,
    )
    assert found.current.delivered_bytes == found.census.data_bytes
    assert found.current.skipped_share == 0
