"""One Spark for all tests of this folder, started when the first of them needs it.

Modules that use it are in the xdist group "spark": one JVM, however many test processes there are.
"""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from segments.spark import local_session

@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    with local_session(cores=2, memory="1g", settings=settings) as session:
        yield session
