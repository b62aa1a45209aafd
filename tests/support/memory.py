"""How much memory peers can make the server hold: a bound for each thing of which there is a limit.

All in bytes, and for the worst a peer can think of, not for what is usual; the tests drive peers up
to these limits. docs/reference/limits.md has the same numbers for the default settings.
"""

from segments.filter_demand import MAX_VALUES
from segments.filter_index import MAX_KEYS, MAX_POSTINGS
from segments.policy import MAX_CHUNK_BYTES
from segments.tracking import MAX_OFFSETS, MAX_SEQUENCES
from streamd.broker.routing.rules import MAX_ARGUMENTS_BYTES
from streamd.broker.routing.topology import MAX_BINDINGS, MAX_EXCHANGES
from streamd.broker.searches import MAX_MESSAGE_BYTES, MAX_SEARCHES, PAGE_BYTES
from streamd.broker.streams import fetcher as tier_fetcher
from streamd.broker.streams.history import _STREAM_SAMPLES, MOST_STREAMS
from streamd.config import (
    FILTER_INDEX_BYTES,
    MAX_IDS,
    MAX_METRICS_CONNECTIONS,
    MAX_NAME_BYTES,
    OUTBOX_BYTES,
    PROPERTIES_BYTES,
    QUEUE_BYTES,
    RECEIVE_BYTES,
    Config,
)
from streamd.connections.amqp091.consumer_methods import MAX_CONSUMERS
from streamd.connections.amqp10.attaching import MAX_LINKS
from streamd.connections.message_delivery import HELD_BYTES
from streamd.connections.unacked import MAX_UNACKED
from streamd.console.sessions import MAX_SESSIONS
from streamd.engine.figures import MAX_NAMES
from streamd.http_api.messages import MAX_BODY_BYTES
from streamd.http_api.metrics import MAX_SENT_AT_ONCE
from streamd.http_api.unsent import _MOST_UNSENT_BYTES
from streamd.metrics.scrape import MAX_ANSWER_BYTES
from streamd.metrics.stream_metrics import COLUMNS
from streamd.wire.amqp091 import connection as amqp
from streamd.wire.stream.connection import LOGIN_FRAME_MAX
from streamd.wire.stream.fields import MAX_ITEMS

TEXT = 8  # memory for each byte of a string: it may be kept twice, with 4 bytes per letter
_OBJECT = 4 << 10  # a publisher, subscription, channel or consumer, apart from its texts
_LINK = 2 << 10  # of AMQP 1.0, that publishes
_CONNECTION = 256 << 10  # tasks, timers, tables; with TLS its buffers
_TURN = 512 << 10  # chunks on their way to one peer
ARRAYS, ITEM = 3, 176  # of a command, and what a tiny item of one takes besides its bytes
REFERENCE = 512  # a stored offset, a publisher's sequence, or a filter value, with its name
MAX_UNPACKED_BYTES = 64 << 20  # of one batch; see segments/compression.py
UNACKED = 128  # the number of a message, and whose it is
JSON = 50  # what JSON takes in memory, as often as its bytes
_POSTING, _KEY = 8, 512  # of a filter index, twice while it grows
_STREAM = 64 << 10  # files, task, tables
_NAME = 512  # what is known of the consumers of one name
_SAMPLE = 32  # of a stream in the last hour, with what a growing array takes


def before_login() -> int:
    """A connection that has not logged in, of any protocol."""
    frame = max(LOGIN_FRAME_MAX, amqp.LOGIN_FRAME_MAX)
    return _CONNECTION + 2 * (RECEIVE_BYTES + frame)


def nothing_open(config: Config) -> int:
    """A connection that has nothing open: it has just logged in, or it is being closed."""
    received = 2 * (RECEIVE_BYTES + max(config.frame_max, amqp.FRAME_MAX))
    return _CONNECTION + received + OUTBOX_BYTES + _TURN


def stream_connection(config: Config) -> int:
    """A connection of the stream protocol."""
    received = 2 * (RECEIVE_BYTES + config.frame_max)  # a frame, and the same as a command
    received += ARRAYS * MAX_ITEMS * ITEM
    answers = OUTBOX_BYTES + 4 * config.frame_max  # what waits, and one more
    answers += 2 * (PAGE_BYTES + MAX_MESSAGE_BYTES)  # a page of a search, and the same as an answer
    return (
        _CONNECTION + received + answers + _TURN + 2 * MAX_IDS * _OBJECT + TEXT * PROPERTIES_BYTES
    )


def amqp_connection() -> int:
    """A connection of AMQP, the largest of both kinds.

    What waits for windows, sessions and links are of AMQP 1.0; returned messages of AMQP 0-9-1.
    """
    received = 2 * (RECEIVE_BYTES + amqp.FRAME_MAX) + 2 * amqp.UNFINISHED_BYTES
    answers = OUTBOX_BYTES + 2 * amqp.MAX_MESSAGE_BYTES  # what waits, and a message sent back
    return (
        _CONNECTION
        + received
        + answers
        + 2 * HELD_BYTES
        + amqp.MAX_MESSAGE_BYTES
        + 3 * MAX_CHUNK_BYTES  # one that is looked at, and what is chosen from it
        + MAX_UNACKED * UNACKED
        + MAX_LINKS * (_LINK + TEXT * MAX_NAME_BYTES)
        + MAX_CONSUMERS * _OBJECT
        + TEXT * PROPERTIES_BYTES
    )


def http_connection() -> int:
    """A connection of the HTTP API, without the answer, of at most some kilobytes for each row."""
    return _CONNECTION + (1 + JSON) * MAX_BODY_BYTES


def http_answers() -> int:
    """Answers to the searches of a user over HTTP that nobody reads; the last may be the largest.

    And a piece of the file that the user gets from the console. JSON takes 6 bytes for one that is
    no text.
    """
    return _MOST_UNSENT_BYTES + 2 * 6 * (PAGE_BYTES + MAX_MESSAGE_BYTES)


def stream(config: Config) -> int:
    """A stream: what is on its way into it, its names, and the index of its newest segment."""
    queued = 2 * (QUEUE_BYTES + config.frame_max)
    names = (MAX_SEQUENCES + MAX_OFFSETS + MAX_VALUES) * REFERENCE
    filters = MAX_POSTINGS * _POSTING + MAX_KEYS * _KEY
    return _STREAM + queued + names + filters


def virtual_host() -> int:
    """What is declared in a virtual host besides its streams."""
    row = REFERENCE + 4 * MAX_NAME_BYTES
    return MAX_EXCHANGES * row + MAX_BINDINGS * (row + TEXT * MAX_ARGUMENTS_BYTES)


def searches() -> int:
    """Searches that run: of each a chunk, and a batch that is unpacked."""
    return MAX_SEARCHES * (2 * MAX_CHUNK_BYTES + 2 * MAX_UNPACKED_BYTES)


def metrics() -> int:
    """Answers with metrics on their way, one of the longest names, connections, and the hour."""
    being_made = Config().max_streams * (2 * 4 * MAX_NAME_BYTES + len(COLUMNS) * 8)
    being_made += MAX_NAMES * (TEXT * 255 + _NAME)
    answers = (MAX_SENT_AT_ONCE + 1) * MAX_ANSWER_BYTES
    last_hour = MOST_STREAMS * _STREAM_SAMPLES * _SAMPLE
    return answers + last_hour + being_made + MAX_METRICS_CONNECTIONS * _CONNECTION


def console() -> int:
    """Logins to the console, each with a sentence that its next page says."""
    return MAX_SESSIONS * (_OBJECT + 4 * 2 * MAX_NAME_BYTES)


def everything(config: Config) -> int:
    """All that peers can make a server hold together; only administrators add hosts and users."""
    connection = max(stream_connection(config), amqp_connection())
    return (
        config.max_connections * connection
        + config.max_http_connections * http_connection()
        + config.max_streams * stream(config)
        + virtual_host()
        + http_answers()
        + FILTER_INDEX_BYTES
        + tier_fetcher.MAX_BYTES
        + searches()
        + metrics()
        + console()
    )
