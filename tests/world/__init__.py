"""One world: a server, its disk and its clients in one process, on one seed, at virtual time."""
