"""The tables of the catalog, and how a catalog of an older version becomes one of this.

Each version added a script; what an old version wrote is never written in another way there.
"""

import sqlite3

VERSION = 5
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
_SCHEMAS = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4, _SCHEMA_5)


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a catalog of an older version up to this one, all of it or nothing.

    Args:
        db: the catalog, not in a transaction.
        version: that it has; 0 for a new one.
    """
    missing = "".join(_SCHEMAS[version:])
    try:
        db.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version = {VERSION}; COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
