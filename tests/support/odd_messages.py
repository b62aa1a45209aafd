"""Messages whose property `region`, or subject, is of every type that AMQP 1.0 has."""

import struct
from itertools import permutations
from typing import NamedTuple

from segments.amqp10 import encode_list, encode_map, encode_text

LONG = b"r" * 300
UUID_BYTES = bytes(range(16))


def _text(raw: bytes, short: int = 0xA1, long: int = 0xB1) -> bytes:
    if len(raw) < 256:
        return bytes((short, len(raw))) + raw
    return bytes((long,)) + struct.pack(">I", len(raw)) + raw


def _long_form(code: int, raw: bytes) -> bytes:
    return bytes((code,)) + struct.pack(">I", len(raw)) + raw


class OddMessage(NamedTuple):
    """A message with a property of some type.

    Attributes:
        raw: its encoding.
        derived: the filter value that the server finds in it, empty for none.
        text: what readers compare with; another than `derived` for numbers and booleans.
    """

    raw: bytes
    derived: bytes
    text: bytes

    @property
    def is_number(self) -> bool:
        """Whether readers see a value where the server sees none."""
        return self.derived != self.text


# By the AMQP type: how a value is encoded, the filter value that the server derives from it, and
# what readers compare with, which take numbers as JSON has them. Written down from the
# specifications, not with the code that is tested.
VALUES: dict[str, tuple[bytes, bytes, bytes]] = {
    "null": (b"\x40", b"", b""),
    "true": (b"\x41", b"", b"true"),
    "false": (b"\x42", b"", b"false"),
    "boolean": (b"\x56\x01", b"", b"true"),
    "ubyte": (b"\x50\x05", b"", b"5"),
    "ushort": (b"\x60\x00\x05", b"", b"5"),
    "uint": (b"\x70\0\0\0\x05", b"", b"5"),
    "small uint": (b"\x52\x05", b"", b"5"),
    "uint 0": (b"\x43", b"", b"0"),
    "ulong": (b"\x80" + b"\xff" * 8, b"", b"18446744073709551615"),
    "small ulong": (b"\x53\x05", b"", b"5"),
    "ulong 0": (b"\x44", b"", b"0"),
    "byte": (b"\x51\x05", b"", b"5"),
    "short": (b"\x61\x00\x05", b"", b"5"),
    "int": (b"\x71\0\0\0\x05", b"", b"5"),
    "small int": (b"\x54\x05", b"", b"5"),
    "long": (b"\x81" + struct.pack(">q", -5), b"", b"-5"),
    "small long": (b"\x55\x05", b"", b"5"),
    "float": (b"\x72" + struct.pack(">f", 2.5), b"", b"2.5"),
    "double": (b"\x82" + struct.pack(">d", 2.5), b"", b"2.5"),
    "nan": (b"\x82" + struct.pack(">d", float("nan")), b"", b"NaN"),
    "decimal32": (b"\x74" + bytes(4), b"", b""),
    "decimal64": (b"\x84" + bytes(8), b"", b""),
    "decimal128": (b"\x94" + bytes(16), b"", b""),
    "char": (b"\x73" + struct.pack(">I", ord("E")), b"", b""),
    "half a char": (b"\x73" + struct.pack(">I", 0xD800), b"", b""),
    "timestamp": (b"\x83" + struct.pack(">q", 1_700_000_000_000), b"", b""),
    "timestamp beyond": (b"\x83" + struct.pack(">q", 1 << 62), b"", b""),
    "uuid": (b"\x98" + UUID_BYTES, UUID_BYTES, UUID_BYTES),
    "binary": (_text(b"EU", 0xA0, 0xB0), b"EU", b"EU"),
    "binary, long form": (_long_form(0xB0, b"EU"), b"EU", b"EU"),
    "binary, not UTF-8": (_text(b"\xff\x00", 0xA0, 0xB0), b"\xff\x00", b"\xff\x00"),
    "binary, of UUID": (_text(UUID_BYTES, 0xA0, 0xB0), UUID_BYTES, UUID_BYTES),
    "binary, 300 bytes": (_text(LONG, 0xA0, 0xB0), LONG, LONG),
    "binary, empty": (b"\xa0\x00", b"", b""),
    "string": (_text(b"EU"), b"EU", b"EU"),
    "string, long form": (_long_form(0xB1, b"EU"), b"EU", b"EU"),
    "string, not ASCII": (_text("é".encode()), "é".encode(), "é".encode()),
    "string, not UTF-8": (_text(b"\xff\x00"), b"", b""),
    "string, 300 bytes": (_text(LONG), LONG, LONG),
    "string, a number": (_text(b"5"), b"5", b"5"),
    "string, empty": (b"\xa1\x00", b"", b""),
    "symbol": (_text(b"EU", 0xA3, 0xB3), b"EU", b"EU"),
    "symbol, long form": (_long_form(0xB3, b"EU"), b"EU", b"EU"),
    "list": (encode_list([_text(b"EU")]), b"", b""),
    "list, empty": (b"\x45", b"", b""),
    "map": (encode_map([_text(b"EU"), _text(b"EU")]), b"", b""),
    "array": (b"\xe0\x05\x01\xa1\x02EU", b"", b""),
    "described": (b"\x00\x53\x05" + _text(b"EU"), b"", b""),
}

_HEADER = b"\x00\x53\x70" + encode_list([b"\x41", b"\x50\x09"])  # durable, priority 9
_BODY = b"\x00\x53\x75\xa0\x01x"
_NOTES = b"\x00\x53\x72" + encode_map([b"\xa3\x01n", b"\x41"])


def _application(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"\x00\x53\x74" + encode_map([part for pair in pairs for part in pair])


def _properties(subject: bytes) -> bytes:
    return b"\x00\x53\x73" + encode_list([b"\x40", b"\x40", b"\x40", subject])


REGION = encode_text("region")
_OTHER = (encode_text("other"), _text(b"EU"))
_EU = (_text(b"EU"), b"EU")


def _pair(name: str, value: bytes) -> bytes:
    """The section that holds a value."""
    return _application(_OTHER, (REGION, value)) if name == "region" else _properties(value)


def odd_messages(name: str) -> list[OddMessage]:
    """Messages, and the filter values of each where `name` is the filter property.

    Args:
        name: region or properties.subject.
    """
    value, _ = _EU
    own = _pair(name, value)
    typed = [
        OddMessage(_pair(name, encoded) + _BODY, derived, text)
        for encoded, derived, text in VALUES.values()
    ]
    found = []
    other = _properties(_text(b"no")) if name == "region" else _application(_OTHER)
    for sections in permutations((_HEADER, _NOTES, other, own)):
        found.append((b"".join(sections) + _BODY, b"EU"))
    found += [
        (own + _pair(name, _text(b"US")) + _BODY, b"EU"),  # the first of a kind counts
        (_BODY, b""),
        (_BODY + own, b""),  # nothing is looked for behind the body
        (own + b"\x00\x53\x77\x55\x05", b"EU"),  # the body is a value
        (b"", b""),
        (b"EU", b""),
        (b"not AMQP 1.0, region EU", b""),
        (own[:-2], b""),
        (b"\x00\x80" + bytes(7) + own[2:] + _BODY, b"EU"),  # a long descriptor
    ]
    if name == "region":
        twice = [(REGION, value), (REGION, _text(b"US"))]
        found += [
            (_application(*twice) + _BODY, b"EU"),
            (_application((REGION, b"\x40"), *twice) + _BODY, b"EU"),
            (_application((b"\xa3\x06region", value)) + _BODY, b"EU"),
            (_application((b"\xa0\x06region", value)) + _BODY, b""),
            (_application((_long_form(0xB1, b"region"), value)) + _BODY, b"EU"),
            (_application(*[(encode_text(f"k{n}"), value) for n in range(200)]) + _BODY, b""),
        ]
    return typed + [OddMessage(raw, value, value) for raw, value in found]


WANTED = tuple(sorted({odd.text for odd in odd_messages("region") if odd.text} | {b"none"}))
