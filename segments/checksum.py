"""CRC-32, of which each chunk has one over its data.

From isal, which the ISA-L project keeps: some thirty times as fast as zlib, whose CRC-32 was a
seventh of all that publishing small messages costs, and a third for large ones. It is there for
the usual processors; elsewhere zlib does the same.
"""

try:
    from isal.isal_zlib import crc32
except ImportError:  # see the marker in pyproject.toml
    from zlib import crc32

__all__ = ["crc32"]
