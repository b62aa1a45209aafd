-- A catalog of version 5.
BEGIN TRANSACTION;
CREATE TABLE bindings (
    virtual_host TEXT NOT NULL,
    super_stream TEXT NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    stream TEXT NOT NULL,
    PRIMARY KEY (virtual_host, super_stream, position)
) WITHOUT ROWID;
INSERT INTO "bindings" VALUES('/','super',0,'b','p-1');
INSERT INTO "bindings" VALUES('/','super',1,'a','p-0');
INSERT INTO "bindings" VALUES('/','super',5,'again','p-1');
INSERT INTO "bindings" VALUES('other','super',0,'0','o');
CREATE TABLE exchanges (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    auto_delete INTEGER NOT NULL,
    internal INTEGER NOT NULL,
    alternate TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
INSERT INTO "exchanges" VALUES('/','x','topic',1,0,'');
INSERT INTO "exchanges" VALUES('/','y','headers',0,1,'super');
CREATE TABLE permissions (
    user TEXT NOT NULL,
    virtual_host TEXT NOT NULL,
    configure TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    PRIMARY KEY (user, virtual_host)
) WITHOUT ROWID;
INSERT INTO "permissions" VALUES('guest','/','.*','.*','.*');
CREATE TABLE routes (
    virtual_host TEXT NOT NULL,
    source TEXT NOT NULL,
    destination TEXT NOT NULL,
    to_exchange INTEGER NOT NULL,
    key TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, source, destination, to_exchange, key, arguments)
) WITHOUT ROWID;
INSERT INTO "routes" VALUES('/','amq.fanout','s',0,'k','{}');
INSERT INTO "routes" VALUES('/','super','y',1,'a','{}');
INSERT INTO "routes" VALUES('/','x','s',0,'a.#','{}');
INSERT INTO "routes" VALUES('/','x','super',1,'#','{}');
INSERT INTO "routes" VALUES('/','y','s',0,'','{"a": 1.0}');
INSERT INTO "routes" VALUES('/','y','s',0,'','{"a": 1}');
CREATE TABLE standing_selectors (
    virtual_host TEXT NOT NULL,
    stream TEXT NOT NULL,
    consumers TEXT NOT NULL,
    dialect TEXT NOT NULL,
    text TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (virtual_host, stream, consumers)
) WITHOUT ROWID;
INSERT INTO "standing_selectors" VALUES('/','s','g','union','a = 1',7);
CREATE TABLE streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL, settings TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
INSERT INTO "streams" VALUES('/','p-0','{}','{}');
INSERT INTO "streams" VALUES('/','p-1','{}','{}');
INSERT INTO "streams" VALUES('/','p-2','{}','{}');
INSERT INTO "streams" VALUES('/','s','{"max-age": 3600}','{"max-age": ""}');
INSERT INTO "streams" VALUES('other','o','{}','{}');
CREATE TABLE super_streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
INSERT INTO "super_streams" VALUES('/','empty');
INSERT INTO "super_streams" VALUES('/','super');
INSERT INTO "super_streams" VALUES('other','super');
CREATE TABLE users (
    name TEXT NOT NULL PRIMARY KEY,
    password_hash TEXT NOT NULL,
    tags TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "users" VALUES('guest','','["administrator"]');
CREATE TABLE virtual_hosts (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;
INSERT INTO "virtual_hosts" VALUES('/');
INSERT INTO "virtual_hosts" VALUES('other');
COMMIT;
PRAGMA user_version = 5;
