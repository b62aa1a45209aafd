"""What `streamd --version` prints: of this program, of the files it writes, of what it speaks.

They change apart from each other. Files of every earlier version can be read.
"""

from segments.format_constants import (
    FILE_VERSION,
    FILTER_INDEX_VERSION,
    KEY_TABLE_VERSION,
)
from streamd.broker.catalog.schema import VERSION as CATALOG_VERSION
from streamd.version import COMPATIBLE_VERSION, __version__


def versions() -> str:
    """Three lines."""
    return (
        f"streamd {__version__}\n"
        f"files: log {FILE_VERSION}, filter index {FILTER_INDEX_VERSION}, "
        f"key index {KEY_TABLE_VERSION}, catalog {CATALOG_VERSION}\n"
        f"protocols: streams as RabbitMQ {COMPATIBLE_VERSION}, AMQP 0-9-1 and 1.0"
    )
