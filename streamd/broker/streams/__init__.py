"""Streams over their logs: what is written, read, flushed, indexed and closed, and when."""
