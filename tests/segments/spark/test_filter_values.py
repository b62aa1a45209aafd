"""Everybody who asks for the filter value of a message gets the same one.

The server's contract, the client library, the command line, the Spark source and tuning; and a
selector that asks for the value finds the same messages.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clients.filters import ArrivedChunk, Filter
from segments import Log, LogPolicy, bloom
from segments.entries import Entries
from segments.message import MessageView
from segments.selector import MatcherSet, filter_value_of, parse_property, parse_sql
from segments.spark.options import values_text
from segments.spark.scanning import scan
from segments.spark.tuning import tune
from streamd.broker.filter_contract import FilterContract
from streamd.cli.filter_property import FilterProperty
from tests.segments.spark.test_decoding import rows
from tests.segments.spark.test_tuning import histories, sets_of
from tests.support.logs import append, entry
from tests.support.odd_messages import LONG, VALUES, WANTED, odd_messages

NAMES = ("region", "properties.subject")
MODES = [(name, unfiltered) for name in NAMES for unfiltered in (False, True)]
REPEATED = 9  # Spark's source looks at messages together where there are enough of a kind


def of_server(name: str, raws: Sequence[bytes]) -> list[bytes]:
    """What the server writes into the filter of a stream that derives."""
    contract = FilterContract(parse_property(name), is_strict=False, derives=True)
    data = b"".join(map(entry, raws))
    ids = b"".join(n.to_bytes(8, "big") for n in range(len(raws)))
    checked = contract.check(Entries(ids, data, len(raws), len(raws), None))
    assert checked.entries is not None
    assert checked.entries.filter_values is not None
    return list(checked.entries.filter_values)


def sql_for(name: str, value: bytes) -> str:
    return f"{name} = 0x{value.hex()}"


@pytest.mark.parametrize("name", NAMES)
def test_the_server_and_the_command_line_read_what_is_written_down(name: str) -> None:
    found = odd_messages(name)
    raws, expected = [raw for raw, _ in found], [value for _, value in found]
    assert of_server(name, raws) == expected
    assert [FilterProperty(name).value(raw) or b"" for raw in raws] == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_contract_takes_these_values_and_no_others(name: str) -> None:
    contract = FilterContract(parse_property(name), is_strict=True, derives=False)
    for raw, value in odd_messages(name):
        right = Entries(bytes(8), entry(raw), 1, 1, [value])
        assert not contract.check(right).refused_ids
        assert contract.check(right._replace(filter_values=[value + b"!"])).refused_ids


@pytest.mark.parametrize(("name", "unfiltered"), MODES)
def test_the_client_hands_out_the_messages_with_a_value(name: str, unfiltered: bool) -> None:
    found = odd_messages(name)
    data = b"".join(entry(raw) for raw, _ in found)
    chunk = ArrivedChunk("s", 0, 0, data, 0, len(found))
    by_program = (
        (lambda m: m.application_property("region"))
        if name == "region"
        else (lambda m: m.properties.subject)
    )
    for wanted in WANTED:
        expected = [n for n, (_, v) in enumerate(found) if v == wanted or (unfiltered and not v)]
        picked = Filter([wanted], unfiltered, name).pick(chunk)
        assert [message.offset for message in picked.wanted] == expected
        assert picked.asked == len(found)
        Filter([wanted], unfiltered, by_program).pick(chunk)  # whatever it gives or raises


@pytest.mark.parametrize("name", NAMES)
def test_selectors_find_the_same_messages(name: str) -> None:
    found = odd_messages(name)
    raws = [raw for raw, _ in found]
    selectors = {value: parse_sql(sql_for(name, value)) for value in WANTED}
    for value, selector in selectors.items():
        expected = [n for n, (_, v) in enumerate(found) if v == value]
        assert selector.matcher().select(raws) == expected
        pushed = selector.push_down(parse_property(name), is_strict=True)
        assert pushed.values == {value}
    for raw, value in found:
        assert MatcherSet(selectors).matching([raw]) == ({value} if value else set())


def test_a_set_of_selectors_finds_what_each_of_them_finds() -> None:
    """Together they read more of a message than each by itself."""
    texts = ("header.priority = 9", "region = 'EU'", "properties.subject = 'no'")
    selectors = {text: parse_sql(text) for text in texts}
    for raw, _ in odd_messages("region"):
        alone = {text for text, one in selectors.items() if one.matcher().matches(raw)}
        assert MatcherSet(selectors).matching([raw]) == alone


def test_a_view_of_a_message_reads_the_same() -> None:
    for kind, (raw, value) in zip(VALUES, odd_messages("region"), strict=False):
        if kind in ("char", "half a char", "string, not UTF-8"):
            continue  # a text for people, or an error
        view = MessageView(raw)
        assert filter_value_of(view.application_property("region")) == value
        assert filter_value_of(view.application_properties.get("region")) == value
    for raw, value in odd_messages("region")[len(VALUES) :]:
        view = MessageView(raw)
        if view.is_amqp:
            assert filter_value_of(view.application_property("region")) == value
        if view.is_amqp and raw.count(b"region") == 1:
            assert filter_value_of(view.application_properties.get("region")) == value


def stored(name: str, *, all_text: bool) -> list[tuple[bytes, bytes]]:
    """The messages of a stream.

    Args:
        name: of the filter property.
        all_text: leave out the one with a string that is not UTF-8: beside it the source looks at
            all messages one by one.
    """
    found = odd_messages(name)
    odd = list(VALUES).index("string, not UTF-8")
    kept = [pair for n, pair in enumerate(found) if n != odd or not all_text]
    return kept * REPEATED


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], str]:
    """Streams by filter property and all_text, with the filter values that the server derives."""
    made = {}
    for name in NAMES:
        for all_text in (False, True):
            folder = tmp_path_factory.mktemp("streams") / name.replace(".", "-")
            log = Log.open(str(folder), LogPolicy(filter_size=255))
            messages = [raw for raw, _ in stored(name, all_text=all_text)]
            for first in range(0, len(messages), 40):
                raws = messages[first : first + 40]
                append(log, raws, of_server(name, raws))
            log.close()
            made[name, all_text] = str(folder)
    return made


def expected_offsets(
    name: str, wanted: bytes, *, all_text: bool, unfiltered: bool = False
) -> list[int]:
    values = [value for _, value in stored(name, all_text=all_text)]
    return [n for n, v in enumerate(values) if v == wanted or (unfiltered and not v)]


@pytest.mark.parametrize(("name", "unfiltered"), MODES)
@pytest.mark.parametrize("all_text", [False, True])
def test_the_source_gives_the_messages_with_a_value(
    streams: dict[tuple[str, bool], str], name: str, unfiltered: bool, all_text: bool
) -> None:
    for wanted in WANTED:
        found = rows(
            streams[name, all_text],
            columns="offset",
            filterValues=values_text([wanted]),
            filterProperty=name,
            matchUnfiltered=str(unfiltered),
        )
        expected = expected_offsets(name, wanted, all_text=all_text, unfiltered=unfiltered)
        assert [row["offset"] for row in found] == expected, wanted


def test_through_spark(spark: SparkSession, streams: dict[tuple[str, bool], str]) -> None:
    values = [b"\xff\x00", "é".encode()]  # on their way to Spark they are JSON in an option
    expected = [n for v in values for n in expected_offsets("region", v, all_text=True)]
    folder = streams["region", True]
    wanted = [values[0], "é"]
    by_value = scan(spark, folder, values=wanted, value_property="region", columns=["offset"])
    assert sorted(row.offset for row in by_value.collect()) == sorted(expected)
    sql = " OR ".join(sql_for("region", value) for value in values)
    by_sql = scan(spark, folder, sql=sql, columns=["offset"])
    assert sorted(row.offset for row in by_sql.collect()) == sorted(expected)


def test_everything_can_be_shown(streams: dict[tuple[str, bool], str]) -> None:
    """All columns, of every type of value: Spark takes no half characters."""
    for (name, all_text), folder in streams.items():
        found = rows(folder, properties="`region` string")
        assert len(found) == len(stored(name, all_text=all_text))


def test_tuning_reads_the_same_from_messages_as_from_trailers(
    streams: dict[tuple[str, bool], str],
) -> None:
    for (name, all_text), folder in streams.items():
        from_messages = sets_of(histories(Path(folder), name))
        assert from_messages == sets_of(histories(Path(folder)))
        for value in set(WANTED) - {b"none"}:
            form = bloom.history_form(value)
            expected = expected_offsets(name, value, all_text=all_text)
            assert sum(chunk.get(form, 0) for chunk in from_messages) == len(expected)


def test_tuning_knows_long_values(spark: SparkSession, tmp_path: Path) -> None:
    """A value of more than 255 bytes, which all chunks have, is delivered and never skipped."""
    log = Log.open(str(tmp_path))
    raw = next(raw for raw, value in odd_messages("region") if value == LONG)
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
