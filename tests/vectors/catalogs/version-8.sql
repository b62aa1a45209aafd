-- A catalog of version 8.
BEGIN TRANSACTION;
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
INSERT INTO "bindings" VALUES('/','amq.fanout','s',0,'k','{}',NULL);
INSERT INTO "bindings" VALUES('/','super','p-0',0,'a','{}',1);
INSERT INTO "bindings" VALUES('/','super','p-1',0,'again','{}',5);
INSERT INTO "bindings" VALUES('/','super','p-1',0,'b','{}',0);
INSERT INTO "bindings" VALUES('/','super','y',1,'a','{}',NULL);
INSERT INTO "bindings" VALUES('/','x','s',0,'a.#','{}',NULL);
INSERT INTO "bindings" VALUES('/','x','super',1,'#','{}',NULL);
INSERT INTO "bindings" VALUES('/','y','s',0,'','{"a": 1.0}',NULL);
INSERT INTO "bindings" VALUES('/','y','s',0,'','{"a": 1}',NULL);
INSERT INTO "bindings" VALUES('other','super','o',0,'0','{}',0);
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
INSERT INTO "exchanges" VALUES('/','empty','direct',0,0,'',1);
INSERT INTO "exchanges" VALUES('/','super','direct',0,0,'',1);
INSERT INTO "exchanges" VALUES('/','x','topic',1,0,'',0);
INSERT INTO "exchanges" VALUES('/','y','headers',0,1,'super',0);
INSERT INTO "exchanges" VALUES('other','super','direct',0,0,'',1);
CREATE TABLE permissions (
    user TEXT NOT NULL,
    virtual_host TEXT NOT NULL,
    configure TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    PRIMARY KEY (user, virtual_host)
) WITHOUT ROWID;
INSERT INTO "permissions" VALUES('guest','/','.*','.*','.*');
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
    arguments TEXT NOT NULL, settings TEXT NOT NULL DEFAULT '{}', has_files INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
INSERT INTO "streams" VALUES('/','p-0','{}','{}',1);
INSERT INTO "streams" VALUES('/','p-1','{}','{}',1);
INSERT INTO "streams" VALUES('/','p-2','{}','{}',1);
INSERT INTO "streams" VALUES('/','s','{"max-age":"1h"}','{"max-age": ""}',1);
INSERT INTO "streams" VALUES('other','o','{}','{}',1);
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
PRAGMA user_version = 8;
