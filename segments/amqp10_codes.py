"""The codes of AMQP 1.0: what a byte says about the value or the section behind it.

Several readers know these codes, because each is fast in another way: value by value in
`amqp10.py`, single properties in `selector/fields.py`, many messages at once in `spark/`, from
encoding to encoding in `streamd/wire/amqp091/messages`. The codes stand here once. They are plain
integers: the interpreter compares those with a byte faster than members of an enumeration.

Source: OASIS AMQP 1.0 part 1 (types), 1.6, and part 3 (messaging), 3.2. Names are those of the
specification, with the number of bits that a size has where there are two forms.
"""

from enum import IntEnum

DESCRIBED = 0x00  # a descriptor and a value follow

# Nothing follows: the code is the value.
NULL, TRUE, FALSE, UINT_0, ULONG_0, LIST_0 = range(0x40, 0x46)

# A fixed number of bytes follows: 1, 2, 4, 8 or 16, by the high half of the code.
UBYTE, BYTE, SMALL_UINT, SMALL_ULONG, SMALL_INT, SMALL_LONG, BOOLEAN = range(0x50, 0x57)
USHORT, SHORT = 0x60, 0x61
UINT, INT, FLOAT, CHAR, DECIMAL32 = range(0x70, 0x75)
ULONG, LONG, DOUBLE, TIMESTAMP, DECIMAL64 = range(0x80, 0x85)
DECIMAL128, UUID = 0x94, 0x98

# A size follows, of one byte or, from FIRST_LONG on, of four; then that many bytes.
BINARY_8, STRING_8, SYMBOL_8 = 0xA0, 0xA1, 0xA3
BINARY_32, STRING_32, SYMBOL_32 = 0xB0, 0xB1, 0xB3
FIRST_LONG = 0xB0

# A size and a count of values follow, as wide as each other.
LIST_8, MAP_8 = 0xC0, 0xC1
LIST_32, MAP_32 = 0xD0, 0xD1
ARRAY_8, ARRAY_32 = 0xE0, 0xF0

# Indexed by the high half of the code: how many bytes follow; below 0 the width of the size that
# follows; None where a value cannot be skipped by its code alone.
WIDTHS = (None, None, None, None, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)

# Numbers, by code, as the module struct reads them, in network byte order.
INTEGERS = {
    UBYTE: "B",
    BYTE: "b",
    SMALL_UINT: "B",
    SMALL_ULONG: "B",
    SMALL_INT: "b",
    SMALL_LONG: "b",
    USHORT: "H",
    SHORT: "h",
    UINT: "I",
    INT: "i",
    ULONG: "Q",
    LONG: "q",
}
FRACTIONS = {FLOAT: "f", DOUBLE: "d"}

STRINGS = (STRING_8, STRING_32)
SYMBOLS = (SYMBOL_8, SYMBOL_32)
TEXTS = (*STRINGS, *SYMBOLS)
BINARIES = (BINARY_8, BINARY_32)
SIZED_8, SIZED_32 = zip(STRINGS, SYMBOLS, BINARIES, strict=True)  # with a size of one byte, of four

# Lists and maps, by code: how wide size and count are.
LISTS = {LIST_0: 0, LIST_8: 1, LIST_32: 4}
MAPS = {MAP_8: 1, MAP_32: 4}

# The start of a section in the shortest form, which everybody writes; the section's code follows.
SHORT_DESCRIPTOR = bytes((DESCRIBED, SMALL_ULONG))


class Section(IntEnum):
    """Section codes, in the order in which sections stand in a message."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78
