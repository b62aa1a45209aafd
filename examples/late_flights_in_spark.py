"""Late flights, in Spark, from the files of a stream; it needs the extra "spark".

python examples/late_flights_in_spark.py data/streams/%2F/flights
spark-submit --py-files streamd.zip examples/late_flights_in_spark.py s3://bucket/prefix/%2F/flights
"""

import sys
from typing import Any

from segments.selector import parse_sql
from segments.spark import open_session, scan, selector_column


def late_by_carrier(spark: Any, folder: str) -> None:
    # Only chunks that may hold HA or AS are read; carrier and dep_delay become columns.
    flights = scan(
        spark,
        folder,
        values=["HA", "AS"],
        value_property="carrier",
        columns=["offset"],
        properties="dep_delay bigint",
    )
    late = selector_column(parse_sql("dep_delay > 60"), flights)
    flights.where(late).groupBy("carrier").count().orderBy("carrier").show()


def late_by_sql(spark: Any, folder: str) -> None:
    source = spark.read.format("streamd").option("columns", "offset,body")
    source = source.option("sql", "carrier = 'HA' AND dep_delay > 60")
    frame = source.option("filterProperty", "carrier").load(folder)
    print([(row.offset, row.body.decode()) for row in frame.collect()])


def as_they_come(spark: Any, folder: str) -> None:
    flights = spark.readStream.format("streamd").option("columns", "offset").load(folder)
    seen = flights.writeStream.format("memory").queryName("seen")
    seen.trigger(availableNow=True).start().awaitTermination()
    print(spark.table("seen").count(), "flights")


def main(folder: str) -> None:
    with open_session() as spark:
        late_by_carrier(spark, folder)
        late_by_sql(spark, folder)
        as_they_come(spark, folder)


if __name__ == "__main__":
    main(sys.argv[1])
