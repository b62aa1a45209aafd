"""Connections of the stream protocol: `connection` is one, `session` finds the handlers."""
