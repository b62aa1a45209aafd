"""What each argument of a stream means, for documentation and forms: Markdown, without an end.

What values it may have is said by `arguments.READERS`.
"""

from typing import NamedTuple

from segments.format_constants import MIN_FILTER_SIZE
from segments.policy import (
    BUSY_CHUNK_RECORDS,
    DEFAULT_CHUNK_BYTES,
    DEFAULT_LOCAL_BYTES,
    DEFAULT_SEGMENT_BYTES,
    DEFAULT_TIER_SEGMENT_BYTES,
    IDLE_CHUNK_RECORDS,
)
from streamd.broker.declared import arguments as a


class Meaning(NamedTuple):
    """What a declaration does not say of an argument.

    Attributes:
        default: what holds without it.
        text: what it does.
    """

    default: str
    text: str


MEANINGS = {
    a.FILTER_SIZE: Meaning(
        str(MIN_FILTER_SIZE),
        "Bytes of each chunk's filter. `auto`: chunk by chunk, the smallest size that keeps false "
        f"positives within `{a.ERROR_RATE}`",
    ),
    a.ERROR_RATE: Meaning(
        f"{a.DEFAULT_ERROR_RATE} with `auto`, else none",
        "False positives to allow, as a share of the chunks without a wanted value. Each filter is "
        "then as small as that allows, and at most as large as the filter size",
    ),
    a.FILTER_PROPERTY: Meaning(
        "none",
        "The property whose values are the filter values; selectors choose chunks by it. An "
        "application property, or a fixed field such as `properties.subject`. With commas between "
        f"them, up to {a.MAX_FILTER_PROPERTIES} properties: values of the further ones are taken "
        "from each message by the server. A name with a comma is written `[a,b]`",
    ),
    a.FILTER_CONTRACT: Meaning(
        f"`{a.LENIENT}`",
        "`strict`: a message whose filter value is not the value of the filter property is "
        "refused. Needs a filter property",
    ),
    a.FILTER_DERIVE: Meaning(
        "`false`",
        "The server gives messages that come without a filter value the value of the filter "
        "property, also inside sub-batches. Needs a filter property",
    ),
    a.FILTER_HISTORY: Meaning(
        "`true`",
        "Each chunk lists its filter values, for the filter index and for tuning. Without them, "
        "chunks are chosen by their filters alone",
    ),
    a.KEY_PROPERTIES: Meaning(
        "none",
        "Properties whose values are keys, which `streamd find` finds messages by. Each is an "
        "application property, or a fixed field such as `properties.message_id`. Over the command "
        "line the option is given for each. When they are changed, all that is on the disk "
        "is indexed anew; what only the tier has is searched without an index of the new ones",
    ),
    a.MAX_LENGTH: Meaning(
        "none",
        "The oldest segments are deleted while the stream is larger, in bytes. What is in the tier "
        "counts, and is deleted there",
    ),
    a.MAX_AGE: Meaning(
        "none", "Segments whose newest chunk is older are deleted, those in the tier as well"
    ),
    a.SEGMENT_SIZE: Meaning(
        f"{DEFAULT_SEGMENT_BYTES:,}; {DEFAULT_TIER_SEGMENT_BYTES:,} for a stream in the tier",
        "A new segment is begun at this size, in bytes",
    ),
    a.CHUNK_RECORDS: Meaning(
        f"{IDLE_CHUNK_RECORDS} to {BUSY_CHUNK_RECORDS:,} by load, {IDLE_CHUNK_RECORDS} with filter "
        "values",
        "Messages in a chunk, at most. Smaller chunks can be skipped more often",
    ),
    a.CHUNK_BYTES: Meaning(
        f"{DEFAULT_CHUNK_BYTES:,}",
        "Bytes of messages in a chunk, at most; a larger message gets a chunk of its own",
    ),
    a.TIER: Meaning(
        "`true`",
        "Full segments are uploaded to the tier, the object store that the setting `tier` names. "
        "Without that setting it has no effect. After `false` nothing more is uploaded",
    ),
    a.LOCAL_LENGTH: Meaning(
        f"{DEFAULT_LOCAL_BYTES:,} without a local age, else none",
        "The messages of the oldest segments are deleted from the local disk while those that are "
        "there take up more, in bytes. They stay in the tier, and can be read. What is not in the "
        "tier stays on the disk",
    ),
    a.LOCAL_AGE: Meaning(
        "none",
        "Messages of segments whose newest chunk is older are deleted from the local disk once "
        "the tier has them",
    ),
    "initial-cluster-size": Meaning("none", "Read and kept for RabbitMQ's clients; without effect"),
    "queue-leader-locator": Meaning("none", "Read and kept for RabbitMQ's clients; without effect"),
}
