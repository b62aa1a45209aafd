"""What messages in a stream have from the server or for it, whichever protocol they came by.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/mc.hrl; OASIS AMQP 1.0 part 3 (messaging), 3.2.
"""

from collections.abc import Iterator

from segments.amqp10_codes import Section
from segments.errors import FormatError
from segments.message import walk_sections

# Keys of message annotations.
FILTER_VALUE, OFFSET = "x-stream-filter-value", "x-stream-offset"
EXCHANGE, ROUTING_KEY, CC = "x-exchange", "x-routing-key", "x-cc"

MAX_KEYS = 1_000  # routing keys of a message besides the one it is published with
MAX_SECTIONS = 1_024  # of a body: each costs as much as a small message
BODY_SECTIONS = frozenset((Section.DATA, Section.SEQUENCE, Section.VALUE))


class TooManyError(FormatError):
    """A message has more parts than are looked at."""


def some_sections(raw: bytes, position: int = 0) -> Iterator[tuple[int, int, int]]:
    """See `walk_sections`.

    Raises:
        FormatError: see there.
        TooManyError: there are more than MAX_SECTIONS.
    """
    for number, section in enumerate(walk_sections(raw, position)):
        if number == MAX_SECTIONS:
            raise TooManyError(f"more than {MAX_SECTIONS:,} sections")
        yield section
