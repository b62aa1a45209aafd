"""Doors over HTTP: the API with the console, and metrics. They know the way to the engine alone.

They run in a process of their own (streamd/processes/doors.py), or in that of the engine; the way
to it is then in memory.
"""

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from starlette.types import ASGIApp

from streamd import console, http_api
from streamd.config import MAX_METRICS_CONNECTIONS, METRICS_PORTS, TLS_PORTS, Config
from streamd.hop.door import EngineLink
from streamd.metrics.scrape import Scrapes
from streamd.net.tls import Certificates

# Serves a port until what it is given returns.
Serve: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class Doors:
    """The doors over HTTP.

    Args:
        config: settings.
        link: to the engine.
        now_ms: the wall clock.
        refused: gets the number of requests and connections that were refused, by the reason.
        names: of this machine, for browsers.
    """

    def __init__(
        self,
        config: Config,
        link: EngineLink,
        now_ms: Callable[[], int],
        refused: Counter[str],
        names: Iterable[str] = (),
    ) -> None:
        self._config, self._link = config, link
        self._now_ms, self._refused = now_ms, refused
        own = (config.host, config.advertised_host, *config.http_allowed_host)
        self._hosts = http_api.known_hosts(*names, *own)

    def http_app(self) -> ASGIApp:
        """The HTTP API and the console."""
        prefix = self._config.http_path_prefix
        service = http_api.Service(self._link, self._refused, self._now_ms, http_api.Unsent())
        pages = console.make_console(service, prefix)
        is_node = bool(self._config.node)
        return http_api.make_app(service, self._hosts, prefix, pages, is_node=is_node)

    def metrics_app(self) -> ASGIApp:
        """The paths for Prometheus."""
        node = f"streamd@{self._config.advertised_host}"
        scrapes = Scrapes(self._link.door.ask, node, self._refused)
        login = None
        if self._config.metrics_login == "on":
            login = http_api.BasicAuthentication(self._link.enter)
        return http_api.make_metrics_app(scrapes, self._hosts, login)

    def ports(
        self, bound: Mapping[str, Sequence[socket.socket]], certificates: Certificates | None
    ) -> Iterator[Serve]:
        """What serves each port.

        Args:
            bound: listening sockets by the setting of their port.
            certificates: for ports inside TLS.
        """
        servers: dict[bool, http_api.Server] = {}
        for setting, sockets in bound.items():
            is_metrics = setting in METRICS_PORTS
            if is_metrics not in servers:
                servers[is_metrics] = self._server(is_metrics=is_metrics)
            inside = certificates if setting in TLS_PORTS else None
            listener = http_api.Listener(sockets, inside)
            yield partial(listener.run, servers[is_metrics])

    def _server(self, *, is_metrics: bool) -> http_api.Server:
        if is_metrics:
            most, limit = MAX_METRICS_CONNECTIONS, "the limit for metrics"
            return http_api.Server(self.metrics_app(), most, limit, self._refused)
        most = self._config.max_http_connections
        return http_api.Server(self.http_app(), most, refused=self._refused)
