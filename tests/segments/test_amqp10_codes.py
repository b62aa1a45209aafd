"""The table of AMQP 1.0 codes agrees with itself, and every code in it can be read."""

import struct

import pytest

from segments import amqp10_codes as codes
from segments.amqp10 import decode_value, skip_value
from segments.errors import FormatError

NUMBERS = codes.INTEGERS | codes.FRACTIONS


@pytest.mark.parametrize("code", NUMBERS, ids=hex)
def test_a_number_is_as_wide_as_its_code_says(code: int) -> None:
    assert struct.calcsize(f">{NUMBERS[code]}") == codes.WIDTHS[code >> 4]


def test_what_can_be_read_is_skipped_as_far() -> None:
    for code in range(256):
        raw = bytes((code,)) + bytes(20)
        try:
            _, end = decode_value(raw)
        except FormatError:
            continue
        assert skip_value(raw, 0) == end, hex(code)


def test_sizes_of_one_byte_come_before_those_of_four() -> None:
    assert max(codes.SIZED_8) < codes.FIRST_LONG <= min(codes.SIZED_32)
