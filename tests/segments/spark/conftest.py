"""One Spark for all tests of this folder, started when the first of them needs it."""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from segments.spark import local_session
from tests.support.stores import KEY_ID, SECRET

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs Spark waits for a JVM: `make test-fast` leaves it out."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than so few rows do
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():  # for its workers, which begin in a moment
            patch.setenv(name, value)
        with local_session(cores=2, memory="1g", settings=settings) as session:
            yield session
