"""A client for RabbitMQ streams, for asyncio and trio programs.

async with connect() as client:
    await client.create("flights", filter_size=64)
    async with client.producer("flights", filter_value=carrier) as producer:
        await producer.send(Message(b"...", application_properties={"carrier": "HA"}))
    async with client.consumer("flights", offset="first", filter_values=["HA"]) as messages:
        async for message in messages: ...
"""

from clients.administration import StandingSelector, StoredOffset, StreamInfo
from clients.client import Client, connect
from clients.consumer import Consumer
from clients.errors import (
    AccessRefused,
    ArrowMissing,
    Closed,
    ConnectionLost,
    DamagedChunk,
    LoginRefused,
    NoOffset,
    PartitionsFailed,
    PreconditionFailed,
    PublishFailed,
    ServerRefused,
    StreamDoesNotExist,
    StreamError,
    StreamExists,
    StreamNotAvailable,
    Unsupported,
)
from clients.filters import ReceivedMessage
from clients.finding import Finding
from clients.position import Moved
from clients.producer import Producer
from clients.super_stream import NoRoute, SuperConsumer, SuperProducer
from segments.amqp10 import Symbol
from segments.arrow.parts import ColumnError
from segments.message import Message, Properties
from segments.selector import Dialect, SelectorError

__all__ = [
    "AccessRefused",
    "ArrowMissing",
    "Client",
    "Closed",
    "ColumnError",
    "ConnectionLost",
    "Consumer",
    "DamagedChunk",
    "Dialect",
    "Finding",
    "LoginRefused",
    "Message",
    "Moved",
    "NoOffset",
    "NoRoute",
    "PartitionsFailed",
    "PreconditionFailed",
    "Producer",
    "Properties",
    "PublishFailed",
    "ReceivedMessage",
    "SelectorError",
    "ServerRefused",
    "StandingSelector",
    "StoredOffset",
    "StreamDoesNotExist",
    "StreamError",
    "StreamExists",
    "StreamInfo",
    "StreamNotAvailable",
    "SuperConsumer",
    "SuperProducer",
    "Symbol",
    "Unsupported",
    "connect",
]
