-- A catalog of version 1.
BEGIN TRANSACTION;
CREATE TABLE streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
INSERT INTO "streams" VALUES('/','p-0','{}');
INSERT INTO "streams" VALUES('/','p-1','{}');
INSERT INTO "streams" VALUES('/','p-2','{}');
INSERT INTO "streams" VALUES('/','s','{"max-age": 3600}');
COMMIT;
PRAGMA user_version = 1;
