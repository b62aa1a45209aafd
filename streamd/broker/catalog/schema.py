"""The tables of the catalog, and how a catalog of an older version is brought up to date.

Each version added a script; scripts of older versions are never changed.
"""

import sqlite3

VERSION = 9
_SCHEMA_1 = """
CREATE TABLE streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
"""
_SCHEMA_2 = """
CREATE TABLE virtual_hosts (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;
INSERT INTO virtual_hosts VALUES ('/');
CREATE TABLE super_streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
CREATE TABLE bindings (
    virtual_host TEXT NOT NULL,
    super_stream TEXT NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    stream TEXT NOT NULL,
    PRIMARY KEY (virtual_host, super_stream, position)
) WITHOUT ROWID;
CREATE TABLE users (
    name TEXT NOT NULL PRIMARY KEY,
    password_hash TEXT NOT NULL,
    tags TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE permissions (
    user TEXT NOT NULL,
    virtual_host TEXT NOT NULL,
    configure TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    PRIMARY KEY (user, virtual_host)
) WITHOUT ROWID;
"""
_SCHEMA_3 = """
CREATE TABLE standing_selectors (
    virtual_host TEXT NOT NULL,
    stream TEXT NOT NULL,
    consumers TEXT NOT NULL,
    dialect TEXT NOT NULL,
    text TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (virtual_host, stream, consumers)
) WITHOUT ROWID;
"""
_SCHEMA_4 = "ALTER TABLE streams ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';"
_SCHEMA_5 = """
CREATE TABLE exchanges (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    auto_delete INTEGER NOT NULL,
    internal INTEGER NOT NULL,
    alternate TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
CREATE TABLE routes (
    virtual_host TEXT NOT NULL,
    source TEXT NOT NULL,
    destination TEXT NOT NULL,
    to_exchange INTEGER NOT NULL,
    key TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, source, destination, to_exchange, key, arguments)
) WITHOUT ROWID;
"""
# A super stream is an exchange, too, and its partitions are bindings with a position.
_SCHEMA_6 = """
ALTER TABLE exchanges RENAME TO old_exchanges;
ALTER TABLE bindings RENAME TO old_partitions;
CREATE TABLE exchanges (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    auto_delete INTEGER NOT NULL,
    internal INTEGER NOT NULL,
    alternate TEXT NOT NULL,
    super_stream INTEGER NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
CREATE TABLE bindings (
    virtual_host TEXT NOT NULL,
    source TEXT NOT NULL,
    destination TEXT NOT NULL,
    to_exchange INTEGER NOT NULL,
    key TEXT NOT NULL,
    arguments TEXT NOT NULL,
    position INTEGER,
    PRIMARY KEY (virtual_host, source, destination, to_exchange, key, arguments)
) WITHOUT ROWID;
INSERT INTO exchanges
    SELECT virtual_host, name, kind, auto_delete, internal, alternate, 0 FROM old_exchanges;
INSERT OR REPLACE INTO exchanges
    SELECT virtual_host, name, 'direct', 0, 0, '', 1 FROM super_streams;
INSERT OR IGNORE INTO bindings
    SELECT virtual_host, super_stream, stream, 0, key, '{}', position FROM old_partitions
    ORDER BY position;
INSERT OR IGNORE INTO bindings
    SELECT virtual_host, source, destination, to_exchange, key, arguments, NULL FROM routes;
DROP TABLE old_exchanges;
DROP TABLE old_partitions;
DROP TABLE super_streams;
DROP TABLE routes;
"""
# A stream gets its files when somebody wants them, not when it is declared.
_FILES = "ALTER TABLE streams ADD COLUMN has_files INTEGER NOT NULL DEFAULT 1;"
# An age is what was declared, as text; before, it was its seconds alone.
_SCHEMA_7 = _FILES + "".join(
    f"""
UPDATE streams SET {column} = json_replace({column}, '$."max-age"', (
    SELECT CASE
        WHEN age % 86400 = 0 THEN (age / 86400) || 'D'
        WHEN age % 3600 = 0 THEN (age / 3600) || 'h'
        WHEN age % 60 = 0 THEN (age / 60) || 'm'
        ELSE age || 's'
    END FROM (SELECT json_extract({column}, '$."max-age"') AS age)
)) WHERE json_type({column}, '$."max-age"') = 'integer';
"""  # noqa: S608 - ours
    for column in ("arguments", "settings")
)
# A stream may have several filter properties, with commas between them; before, a comma was part of
# the name of one. The program that knew version 7 would take several for one.
_NAME = "json_extract(arguments, '$.\"stream-filter-property\"')"
_SCHEMA_8 = f"""
UPDATE streams SET arguments = json_replace(
    arguments, '$."stream-filter-property"', '[' || replace({_NAME}, ']', ']]') || ']'
) WHERE {_NAME} LIKE '%,%';
"""  # noqa: S608 - ours
# What is in no entry of a tier's log yet, and what is known of that, see unlogged.py.
_SCHEMA_9 = """
CREATE TABLE unlogged (
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    change INTEGER NOT NULL,
    start TEXT NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE TABLE log_state (
    change INTEGER NOT NULL,
    state TEXT NOT NULL,
    start TEXT NOT NULL
);
INSERT INTO log_state VALUES (0, '', '');
"""
_SCHEMAS = (
    _SCHEMA_1,
    _SCHEMA_2,
    _SCHEMA_3,
    _SCHEMA_4,
    _SCHEMA_5,
    _SCHEMA_6,
    _SCHEMA_7,
    _SCHEMA_8,
    _SCHEMA_9,
)


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a catalog of an older version up to this one, all of it or nothing.

    Args:
        db: the catalog, not in a transaction.
        version: of the catalog; 0 for a new one.
    """
    missing = "".join(_SCHEMAS[version:])
    try:
        db.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version = {VERSION}; COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
