"""The process that answers scrapes: it has the port for metrics, and asks the engine."""

import socket
from collections.abc import Mapping, Sequence
from functools import partial

import trio

from streamd import http_api
from streamd.config import MAX_METRICS_CONNECTIONS, Config
from streamd.hop.door import EngineLink
from streamd.metrics.scrape import Scrapes
from streamd.net.tls import Certificates
from streamd.processes.child import follow
from streamd.processes.control import READY, RELOAD, Said, say

PORTS = {"metrics_port": False, "metrics_tls_port": True}  # whether they are inside TLS


async def serve_metrics(
    config: Config,
    bound: Mapping[str, Sequence[socket.socket]],
    control: socket.socket,
    engine: socket.socket,
) -> None:
    """Serve until the engine or the parent has gone.

    Args:
        config: settings.
        bound: listening sockets by the setting of their port.
        control: to the parent.
        engine: to the engine.
    """
    certificates = Certificates(config) if "metrics_tls_port" in bound else None

    def take(said: Said) -> None:
        if said.word == RELOAD and certificates is not None:
            certificates.reload()

    link = EngineLink(trio.SocketStream(trio.socket.from_stdlib_socket(engine)))
    scrapes = Scrapes(link.door.ask, f"streamd@{config.advertised_host}")
    names = [*await http_api.machine_names(), config.host, config.advertised_host]
    hosts = http_api.known_hosts(*names, *config.http_allowed_host)
    login = http_api.BasicAuthentication(link.enter) if config.metrics_login == "on" else None
    app = http_api.make_metrics_app(scrapes, hosts, login)
    limit = "the limit for metrics"
    server = http_api.Server(app, MAX_METRICS_CONNECTIONS, limit, scrapes.refused)
    async with trio.open_nursery() as nursery:
        for setting, sockets in bound.items():
            inside = certificates if PORTS[setting] else None
            listener = http_api.Listener(sockets, inside)
            nursery.start_soon(partial(listener.run, server, trio.sleep_forever))
        nursery.start_soon(_until_end, link, nursery)
        say(control, READY)
        await follow(control, take)
        nursery.cancel_scope.cancel()


async def _until_end(link: EngineLink, nursery: trio.Nursery) -> None:
    await link.run()  # the engine has gone: nothing can be told any more
    nursery.cancel_scope.cancel()
