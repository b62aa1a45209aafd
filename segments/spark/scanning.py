"""`scan`: conditions given once, used both to skip chunks and to select messages."""

import warnings
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from segments.errors import SegmentsError
from segments.selector import names_in
from segments.spark.columns import declared, filter_values_of
from segments.spark.entries import MessageBlock, read_piece
from segments.spark.options import Options, read_options, values_text
from segments.spark.plan import pieces
from segments.spark.register import register
from segments.spark.streams import find_streams
from segments.times import whole_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PEEKED_STREAMS, _PEEKED_CHUNKS = 16, 8  # where numbers are looked for


def scan(  # noqa: PLR0913 - each may be left out
    spark: "SparkSession",
    path: str,
    *,
    offsets: tuple[int | None, int | None] = (None, None),
    times: tuple[datetime | None, datetime | None] = (None, None),
    values: Sequence[str | bytes] | None = None,
    value_property: str | None = None,
    match_unfiltered: bool = False,
    filter_contract: str = "lenient",
    sql: str | None = None,
    tags: str | None = None,
    columns: Sequence[str] | None = None,
    properties: str = "",
    endpoint: str = "",
) -> "DataFrame":
    """Read a stream without the chunks that cannot hold anything that is asked for.

    Every call loads the stream again, so conditions of one query never leak into another.

    Args:
        spark: any session; the source is registered with it.
        path: a stream's folder, or a folder of streams; or a stream in an object store, as
            s3://BUCKET/PREFIX/VHOST/STREAM.
        offsets: the first one and the one after the last.
        times: of chunks, the first one and the one after the last; local without a zone.
        values: filter values. Chunks without them are not read.
        value_property: the property that the values are of, such as "region" or
            "properties.subject"; messages with other values are left out then, and it is a
            column, of strings unless `properties` declares another type. The stream's further
            filter properties may follow it, as in "region,kind", for `sql`. A number or a boolean
            counts as its JSON text, 5, 2.5, true; in a column of strings it is null, which a
            warning says where the first chunks hold one, and chunks with messages without a
            filter value are read for it. Without it all messages of the chunks come that may hold
            one of the values.
        match_unfiltered: also messages without a filter value.
        filter_contract: "strict" where the stream has that contract: a number has no filter value
            there, and `sql` skips more chunks.
        sql: a SQL92 selector; just the messages that it selects come.
        tags: a tag expression instead.
        columns: which ones, None for all; fewer are read faster.
        properties: properties to become columns, as in "dep_delay bigint".
        endpoint: URL of the store's server, empty for what the environment says.

    Raises:
        NotAStream: there is no stream at the path.
        TierError: the store refused, or could not be reached.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it; an extra

    register(spark)
    find_streams(path, endpoint)  # says so here, in one line
    first = names_in(value_property)[0] if value_property else ""
    is_added = bool(
        values is not None and first and first not in [c.name for c in declared(properties)]
    )
    if is_added:
        properties = ", ".join(filter(None, (properties, f"`{first}` string")))
    options = {
        "startOffset": offsets[0],
        "endOffset": offsets[1],
        "startTimestamp": None if times[0] is None else whole_ms(times[0]),
        "endTimestamp": None if times[1] is None else whole_ms(times[1]),
        "filterValues": None if values is None else values_text(values),
        "matchUnfiltered": match_unfiltered,
        "filterProperty": value_property,
        "filterContract": filter_contract,
        "sql": sql,
        "tags": tags,
        "columns": ",".join(columns) if columns else None,
        "properties": properties,
        "endpoint": endpoint or None,
    }
    given = {name: str(option) for name, option in options.items() if option is not None}
    found = spark.read.format("streamd").options(**given).load(path)
    if is_added and _has_numbers(read_options({**given, "path": path})):
        warnings.warn(
            f"property {first} has numbers: values are compared with their JSON text, and "
            f"its column of strings is null for them; properties='`{first}` bigint' or "
            "double gives another one",
            stacklevel=2,
        )
    for part in _condition(F.col("offset") if "offset" in found.columns else None, offsets):
        found = found.where(part)
    return found


def _has_numbers(options: Options) -> bool:
    """Whether the filter property of a message is a number or a boolean in the first chunks.

    Damage is left to the query to report.
    """
    filter_property = options.declared()
    if filter_property is None:
        return False
    criteria = options.wanted()
    for stream in islice(find_streams(options.paths[0], options.endpoint), _PEEKED_STREAMS):
        listings = stream.listings(criteria.bounds)
        first = next(pieces(stream.name, listings, criteria), None)
        if first is None or first.gap is not None:
            continue
        try:
            for found in read_piece(first.part(0, _PEEKED_CHUNKS)):
                if isinstance(found, MessageBlock):
                    is_number = filter_values_of(found, filter_property).is_number
                    if pc.any(is_number).as_py():
                        return True
        except SegmentsError:
            continue
    return False


def _condition(offset: "Column | None", offsets: tuple[int | None, int | None]) -> "list[Column]":
    if offset is None:
        return []
    first, end = offsets
    parts = [] if first is None else [offset >= first]
    return parts if end is None else [*parts, offset < end]
