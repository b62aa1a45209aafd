"""streamd: a stream server that RabbitMQ stream clients connect to, and a client library.

async with connect() as client:
    await client.create("flights", filter_size=64)
    async with client.producer("flights", filter_value=carrier) as producer:
        await producer.send(Message(b"...", application_properties={"carrier": "HA"}))
    async with client.consumer("flights", offset="first", filter_values=["HA"]) as messages:
        async for message in messages: ...

Names of the library come from the package `clients`, which is loaded when one is asked for: the
server does without it.
"""

from typing import TYPE_CHECKING

from streamd.version import __version__

__all__ = ["__version__"]

if TYPE_CHECKING:
    from clients import *  # noqa: F403
else:

    def __getattr__(name):  # noqa: ANN001, ANN202 - not for type checkers
        # Whoever imports a module asks for it here first, and modules have small letters.
        if name == "connect" or name[:1].isupper():
            import clients  # noqa: PLC0415 - see above

            if name in clients.__all__:
                return getattr(clients, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
