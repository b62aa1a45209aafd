"""The web console: pages for people, made by the server, on the port of the HTTP API."""

from streamd.console.app import make_console

__all__ = ["make_console"]
