"""Registering the source with a SparkSession."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Let `spark.read.format("streamd")` and `spark.readStream.format("streamd")` work.

    Args:
        spark: the session; its Python workers need this package installed.
    """
    from segments.spark.source import StreamdSource  # noqa: PLC0415 - pyspark is an extra

    spark.dataSource.register(StreamdSource)
