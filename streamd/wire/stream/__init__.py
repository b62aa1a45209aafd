"""The stream protocol without sockets or clocks, for both ends.

`Connection` turns bytes into the commands of `commands.py` and back and knows what may be said
when; `publish.py` and `deliver.py` hold what has to be fast. Trio and files are unknown here.
"""

from streamd.wire.stream.codes import ResponseCode, text_of
from streamd.wire.stream.connection import NEED_DATA, Connection, NeedData, Role
from streamd.wire.stream.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from streamd.wire.stream.states import State

__all__ = [
    "NEED_DATA",
    "Connection",
    "LocalProtocolError",
    "NeedData",
    "ProtocolError",
    "RemoteProtocolError",
    "ResponseCode",
    "Role",
    "State",
    "text_of",
]
