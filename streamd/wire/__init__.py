"""Protocols as bytes: no sockets, no clocks, no event loop. A package for each protocol."""
