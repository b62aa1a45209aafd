"""Carries out operations: one handler each, behind one place where rights are decided."""

from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.engine.caller import Caller, DoorCaller
from streamd.engine.engine import Engine, Parts
from streamd.engine.figures import Figures
from streamd.engine.registry import ConnectionRegistry
from streamd.engine.streams import Streams
from streamd.engine.tier import Tier
from streamd.engine.users import Users, VirtualHosts

__all__ = ["Caller", "DoorCaller", "Engine", "open_engine"]

_ROOMS = (Users, VirtualHosts, Streams, Tier, Figures)


def open_engine(
    broker: Broker, directory: UserDirectory, connections: ConnectionRegistry
) -> Engine:
    """The engine over the parts of a server."""
    parts = Parts(broker, directory, connections)
    handlers = (room(parts).handlers for room in _ROOMS)
    return Engine(*handlers, hosts=broker.virtual_hosts)
