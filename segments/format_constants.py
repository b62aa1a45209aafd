"""The numbers of the on-disk formats: magic, versions, kinds and limits.

`layout.py` declares what the files look like, `codec.py` reads and writes them; both use these.
They stand apart from the declarations so that neither server nor client loads a parser generator
that it never uses.

Source: rabbitmq/osiris, src/osiris_log.erl (head comment) and src/osiris_tracking.erl.
"""

SEGMENT_MAGIC = b"OSIL"
INDEX_MAGIC = b"OSII"
TRACKING_MAGIC = b"STRK"
DAMAGE_MAGIC = b"SDMG"
FILTER_INDEX_MAGIC = b"SFLT"
KEY_TABLE_MAGIC = b"SKEY"
CHECKPOINT_MAGIC = b"SCKP"
FILE_VERSION = 1
FILTER_INDEX_VERSION = 2  # 1 did not say which content of its segment it was made from
KEY_TABLE_VERSION = 2
KEY_BLOCK_SIZE = 4096
CHUNK_MAGIC = 0x50  # magic 5 in the high nibble, version 0 in the low one

USER, TRACKING_DELTA, TRACKING_SNAPSHOT = 0, 1, 2
SEQUENCE, OFFSET, TIMESTAMP, FILTER_VALUE = 0, 1, 2, 3
COLUMNS = TIMESTAMP  # in a trailer of messages, where osiris has no timestamps
JOURNAL_DELTA, JOURNAL_SNAPSHOT = 1, 2
OSIRIS_SCHEME, MMH3_SCHEME = 0, 1
NO_COMPRESSION, GZIP, SNAPPY, LZ4, ZSTD = range(5)

SUB_BATCH_BIT = 0x80
MIN_FILTER_SIZE, MAX_FILTER_SIZE = 16, 255
