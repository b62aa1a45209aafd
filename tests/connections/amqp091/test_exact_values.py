"""The filter value of a message, where its annotations tell it."""

from itertools import permutations

from segments.amqp10 import encode_list, encode_map, encode_symbol, encode_text
from segments.bloom import ChunkMatcher
from segments.message import Message
from streamd.connections.consumer_choice import ExactValues, annotated_value
from tests.support.logs import entry

HEADER = b"\x00\x53\x70" + encode_list([b"\x41"])
DELIVERY = b"\x00\x53\x71" + encode_map([encode_symbol("d"), b"\x41"])
NOTES = b"\x00\x53\x72" + encode_map([encode_symbol("x-stream-filter-value"), encode_text("v")])
PROPERTIES = b"\x00\x53\x73" + encode_list([encode_text("id")])
APPLICATION = b"\x00\x53\x74" + encode_map([encode_text("n"), b"\x41"])
BODY = b"\x00\x53\x75\xa0\x01x"


def test_sections_stand_in_any_order_before_the_body() -> None:
    raws = [
        b"".join(sections) + BODY
        for sections in permutations((HEADER, DELIVERY, NOTES, PROPERTIES, APPLICATION))
    ]
    assert {annotated_value(raw) for raw in raws} == {b"v"}
    data = b"".join(map(entry, raws))
    ends = [sum(4 + len(raw) for raw in raws[: n + 1]) for n in range(len(raws))]
    for wanted, found in ((b"v", list(range(len(raws)))), (b"w", [])):
        assert ExactValues(ChunkMatcher([wanted]), {}).places(data, ends) == found


def test_what_does_not_tell() -> None:
    for raw in (BODY + NOTES, PROPERTIES + BODY, b"", b"no message", NOTES[:-1], PROPERTIES[:-1]):
        assert annotated_value(raw) is None
    assert annotated_value(Message(b"x").encode()) is None
