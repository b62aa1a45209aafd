"""Late flights by carrier, in Spark, from the files of a stream; it needs the extra "spark".

python examples/late_flights_in_spark.py data/streams/%2F/flights
"""

import sys

from segments.selector import parse_sql
from segments.spark import local_session, scan, selector_column


def main(folder: str) -> None:
    with local_session() as spark:
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


if __name__ == "__main__":
    main(sys.argv[1])
