"""Carries out operations: one handler each, behind one place where rights are decided."""

from collections.abc import Mapping

from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.engine.caller import Caller, DoorCaller
from streamd.engine.cluster import Cluster
from streamd.engine.connections import Connections
from streamd.engine.engine import Engine, Handlers, Parts
from streamd.engine.figures import Figures
from streamd.engine.overview import Overview
from streamd.engine.publishing import Publishing
from streamd.engine.registry import ConnectionRegistry
from streamd.engine.routing import Definitions, Routing
from streamd.engine.searching import Searching
from streamd.engine.stream_views import StreamViews
from streamd.engine.streams import Streams
from streamd.engine.tier import Tier
from streamd.engine.users import Users, VirtualHosts
from streamd.engine.watch import Watch
from streamd.net.transport import Address
from streamd.operations.server import DoorFacts

__all__ = ["Caller", "DoorCaller", "Engine", "Watch", "open_engine"]

_ROOMS = (
    Users,
    VirtualHosts,
    Streams,
    StreamViews,
    Searching,
    Publishing,
    Routing,
    Connections,
    Overview,
    Tier,
    Cluster,
    Figures,
)


def open_engine(
    broker: Broker,
    directory: UserDirectory,
    connections: ConnectionRegistry,
    listeners: Mapping[str, Address],
    doors: Mapping[str, DoorFacts],
) -> Engine:
    """The engine over the parts of a server."""
    parts = Parts(broker, directory, connections, listeners, doors)
    handlers: Handlers = {}
    for room in _ROOMS:
        handlers |= room(parts).handlers
    handlers |= Definitions(handlers).handlers
    return Engine(handlers, hosts=broker.virtual_hosts)
