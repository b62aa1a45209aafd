"""A process beside the engine: it has some of the ports, and asks the engine."""

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import trio

from streamd import http_api
from streamd.config import TLS_PORTS, Config
from streamd.doors import Doors
from streamd.hop.door import EngineLink
from streamd.net.clock import wall_clock_ms
from streamd.net.tls import Certificates
from streamd.operations.figures import CountRefusals
from streamd.processes.child import follow
from streamd.processes.control import READY, RELOAD, Said, say

_REPORT_SECONDS = 1.0


async def serve_ports(
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
    certificates = Certificates(config) if bound.keys() & set(TLS_PORTS) else None

    def take(said: Said) -> None:
        if said.word == RELOAD and certificates is not None:
            certificates.reload()

    link = EngineLink(trio.SocketStream(trio.socket.from_stdlib_socket(engine)))
    refused: Counter[str] = Counter()
    names = await http_api.machine_names()
    doors = Doors(config, link, wall_clock_ms, refused, names)
    async with trio.open_nursery() as nursery:
        for serve in doors.ports(bound, certificates):
            nursery.start_soon(serve, trio.sleep_forever)
        nursery.start_soon(_until_end, link, nursery)
        nursery.start_soon(partial(_report, link, refused))
        say(control, READY)
        await follow(control, take)
        nursery.cancel_scope.cancel()


async def _until_end(link: EngineLink, nursery: trio.Nursery) -> None:
    await link.run()  # the engine has gone: nothing can be told any more
    nursery.cancel_scope.cancel()


async def _report(link: EngineLink, refused: Counter[str]) -> None:
    """Tell the engine what was refused here, for its metrics."""
    while True:
        await trio.sleep(_REPORT_SECONDS)
        if refused:
            counts = dict(refused)
            refused.clear()
            await link.door.ask(CountRefusals(counts=counts))
