"""How fast the server is, measured over its socket: `make bench`."""
