"""`streamd --version`: of the program, its files and its protocols."""

import re

from segments.format_constants import FILE_VERSION
from streamd import __version__
from streamd.broker.catalog.schema import VERSION
from tests.support.command_line import CommandLine


def test_all_versions(streamd: CommandLine) -> None:
    program, files, protocols = streamd("--version").out.splitlines()
    assert program == f"streamd {__version__}"
    assert re.fullmatch(
        rf"files: log {FILE_VERSION}, filter index \d+, key index \d+, catalog {VERSION}", files
    )
    assert re.fullmatch(
        r"protocols: streams as RabbitMQ \d+\.\d+\.\d+, AMQP 0-9-1 and 1\.0", protocols
    )
