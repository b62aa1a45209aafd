"""Clients in other languages, unmodified, against a real server: `make interop`."""
