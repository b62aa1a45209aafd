"""The methods of AMQP 0-9-1: one class for each, its fields in the order of the wire.

`codec.py` derives encoding and decoding from the annotations. The table at the end gives each its
numbers, and the end that may send it.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_codegen/amqp-rabbitmq-0.9.1.json.
"""

from typing import Annotated, Any, NamedTuple, TypeAlias

from streamd.wire.amqp091.errors import MethodId
from streamd.wire.amqp091.values import Table as _Table

Octet: TypeAlias = Annotated[int, "octet"]
Short: TypeAlias = Annotated[int, "short"]
Long: TypeAlias = Annotated[int, "long"]
LongLong: TypeAlias = Annotated[int, "longlong"]
Bit: TypeAlias = Annotated[bool, "bit"]
ShortText: TypeAlias = Annotated[str, "shortstr"]
LongText: TypeAlias = Annotated[bytes, "longstr"]
Table: TypeAlias = Annotated[_Table, "table"]


class ConnectionStart(NamedTuple):  # noqa: D101 - see the module
    major: Octet
    minor: Octet
    properties: Table
    mechanisms: LongText
    locales: LongText


class ConnectionStartOk(NamedTuple):  # noqa: D101
    properties: Table
    mechanism: ShortText
    response: LongText
    locale: ShortText = "en_US"

    def __repr__(self) -> str:
        return f"ConnectionStartOk({self.mechanism!r}, <secret>)"


class ConnectionSecure(NamedTuple):  # noqa: D101
    challenge: LongText


class ConnectionSecureOk(NamedTuple):  # noqa: D101
    response: LongText

    def __repr__(self) -> str:
        return "ConnectionSecureOk(<secret>)"


class ConnectionTune(NamedTuple):  # noqa: D101
    channel_max: Short
    frame_max: Long
    heartbeat: Short


class ConnectionTuneOk(NamedTuple):  # noqa: D101
    channel_max: Short
    frame_max: Long
    heartbeat: Short


class ConnectionOpen(NamedTuple):  # noqa: D101
    virtual_host: ShortText
    reserved_1: ShortText = ""
    reserved_2: Bit = False


class ConnectionOpenOk(NamedTuple):  # noqa: D101
    reserved: ShortText = ""


class ConnectionClose(NamedTuple):  # noqa: D101
    code: Short
    text: ShortText
    class_id: Short = 0
    method_id: Short = 0


class ConnectionCloseOk(NamedTuple):  # noqa: D101
    pass


class ConnectionBlocked(NamedTuple):  # noqa: D101
    reason: ShortText


class ConnectionUnblocked(NamedTuple):  # noqa: D101
    pass


class ConnectionUpdateSecret(NamedTuple):  # noqa: D101
    secret: LongText
    reason: ShortText

    def __repr__(self) -> str:
        return f"ConnectionUpdateSecret(<secret>, {self.reason!r})"


class ConnectionUpdateSecretOk(NamedTuple):  # noqa: D101
    pass


class ChannelOpen(NamedTuple):  # noqa: D101
    reserved: ShortText = ""


class ChannelOpenOk(NamedTuple):  # noqa: D101
    reserved: LongText = b""


class ChannelFlow(NamedTuple):  # noqa: D101
    active: Bit


class ChannelFlowOk(NamedTuple):  # noqa: D101
    active: Bit


class ChannelClose(NamedTuple):  # noqa: D101
    code: Short
    text: ShortText
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(NamedTuple):  # noqa: D101
    pass


class AccessRequest(NamedTuple):  # noqa: D101
    realm: ShortText
    exclusive: Bit = False
    passive: Bit = False
    active: Bit = False
    write: Bit = False
    read: Bit = False


class AccessRequestOk(NamedTuple):  # noqa: D101
    ticket: Short = 1


class ExchangeDeclare(NamedTuple):  # noqa: D101
    ticket: Short
    exchange: ShortText
    kind: ShortText
    passive: Bit
    durable: Bit
    auto_delete: Bit
    internal: Bit
    nowait: Bit
    arguments: Table


class ExchangeDeclareOk(NamedTuple):  # noqa: D101
    pass


class ExchangeDelete(NamedTuple):  # noqa: D101
    ticket: Short
    exchange: ShortText
    if_unused: Bit
    nowait: Bit


class ExchangeDeleteOk(NamedTuple):  # noqa: D101
    pass


class ExchangeBind(NamedTuple):  # noqa: D101
    ticket: Short
    destination: ShortText
    source: ShortText
    key: ShortText
    nowait: Bit
    arguments: Table


class ExchangeBindOk(NamedTuple):  # noqa: D101
    pass


class ExchangeUnbind(NamedTuple):  # noqa: D101
    ticket: Short
    destination: ShortText
    source: ShortText
    key: ShortText
    nowait: Bit
    arguments: Table


class ExchangeUnbindOk(NamedTuple):  # noqa: D101
    pass


class QueueDeclare(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    nowait: Bit
    arguments: Table


class QueueDeclareOk(NamedTuple):  # noqa: D101
    queue: ShortText
    messages: Long
    consumers: Long


class QueueBind(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    exchange: ShortText
    key: ShortText
    nowait: Bit
    arguments: Table


class QueueBindOk(NamedTuple):  # noqa: D101
    pass


class QueuePurge(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    nowait: Bit


class QueuePurgeOk(NamedTuple):  # noqa: D101
    messages: Long


class QueueDelete(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    if_unused: Bit
    if_empty: Bit
    nowait: Bit


class QueueDeleteOk(NamedTuple):  # noqa: D101
    messages: Long


class QueueUnbind(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    exchange: ShortText
    key: ShortText
    arguments: Table


class QueueUnbindOk(NamedTuple):  # noqa: D101
    pass


class BasicQos(NamedTuple):  # noqa: D101
    size: Long
    prefetch: Short
    is_global: Bit


class BasicQosOk(NamedTuple):  # noqa: D101
    pass


class BasicConsume(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    tag: ShortText
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    nowait: Bit
    arguments: Table


class BasicConsumeOk(NamedTuple):  # noqa: D101
    tag: ShortText


class BasicCancel(NamedTuple):  # noqa: D101
    tag: ShortText
    nowait: Bit


class BasicCancelOk(NamedTuple):  # noqa: D101
    tag: ShortText


class BasicPublish(NamedTuple):  # noqa: D101
    ticket: Short
    exchange: ShortText
    key: ShortText
    mandatory: Bit
    immediate: Bit


class BasicReturn(NamedTuple):  # noqa: D101
    code: Short
    text: ShortText
    exchange: ShortText
    key: ShortText


class BasicDeliver(NamedTuple):  # noqa: D101
    tag: ShortText
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortText
    key: ShortText


class BasicGet(NamedTuple):  # noqa: D101
    ticket: Short
    queue: ShortText
    no_ack: Bit


class BasicGetOk(NamedTuple):  # noqa: D101
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortText
    key: ShortText
    messages: Long


class BasicGetEmpty(NamedTuple):  # noqa: D101
    reserved: ShortText = ""


class BasicAck(NamedTuple):  # noqa: D101
    delivery_tag: LongLong
    multiple: Bit = False


class BasicReject(NamedTuple):  # noqa: D101
    delivery_tag: LongLong
    requeue: Bit = True


class BasicRecoverAsync(NamedTuple):  # noqa: D101
    requeue: Bit


class BasicRecover(NamedTuple):  # noqa: D101
    requeue: Bit


class BasicRecoverOk(NamedTuple):  # noqa: D101
    pass


class BasicNack(NamedTuple):  # noqa: D101
    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = True


class ConfirmSelect(NamedTuple):  # noqa: D101
    nowait: Bit = False


class ConfirmSelectOk(NamedTuple):  # noqa: D101
    pass


class TxSelect(NamedTuple):  # noqa: D101
    pass


class TxCommit(NamedTuple):  # noqa: D101
    pass


class TxRollback(NamedTuple):  # noqa: D101
    pass


_TABLE: tuple[tuple[int, int, str, type[Any]], ...] = (
    (10, 10, "server", ConnectionStart),
    (10, 11, "client", ConnectionStartOk),
    (10, 20, "server", ConnectionSecure),
    (10, 21, "client", ConnectionSecureOk),
    (10, 30, "server", ConnectionTune),
    (10, 31, "client", ConnectionTuneOk),
    (10, 40, "client", ConnectionOpen),
    (10, 41, "server", ConnectionOpenOk),
    (10, 50, "both", ConnectionClose),
    (10, 51, "both", ConnectionCloseOk),
    (10, 60, "server", ConnectionBlocked),
    (10, 61, "server", ConnectionUnblocked),
    (10, 70, "client", ConnectionUpdateSecret),
    (10, 71, "server", ConnectionUpdateSecretOk),
    (20, 10, "client", ChannelOpen),
    (20, 11, "server", ChannelOpenOk),
    (20, 20, "both", ChannelFlow),
    (20, 21, "both", ChannelFlowOk),
    (20, 40, "both", ChannelClose),
    (20, 41, "both", ChannelCloseOk),
    (30, 10, "client", AccessRequest),
    (30, 11, "server", AccessRequestOk),
    (40, 10, "client", ExchangeDeclare),
    (40, 11, "server", ExchangeDeclareOk),
    (40, 20, "client", ExchangeDelete),
    (40, 21, "server", ExchangeDeleteOk),
    (40, 30, "client", ExchangeBind),
    (40, 31, "server", ExchangeBindOk),
    (40, 40, "client", ExchangeUnbind),
    (40, 51, "server", ExchangeUnbindOk),  # not 41, for historical reasons
    (50, 10, "client", QueueDeclare),
    (50, 11, "server", QueueDeclareOk),
    (50, 20, "client", QueueBind),
    (50, 21, "server", QueueBindOk),
    (50, 30, "client", QueuePurge),
    (50, 31, "server", QueuePurgeOk),
    (50, 40, "client", QueueDelete),
    (50, 41, "server", QueueDeleteOk),
    (50, 50, "client", QueueUnbind),
    (50, 51, "server", QueueUnbindOk),
    (60, 10, "client", BasicQos),
    (60, 11, "server", BasicQosOk),
    (60, 20, "client", BasicConsume),
    (60, 21, "server", BasicConsumeOk),
    (60, 30, "both", BasicCancel),
    (60, 31, "both", BasicCancelOk),
    (60, 40, "client", BasicPublish),
    (60, 50, "server", BasicReturn),
    (60, 60, "server", BasicDeliver),
    (60, 70, "client", BasicGet),
    (60, 71, "server", BasicGetOk),
    (60, 72, "server", BasicGetEmpty),
    (60, 80, "both", BasicAck),
    (60, 90, "client", BasicReject),
    (60, 100, "client", BasicRecoverAsync),
    (60, 110, "client", BasicRecover),
    (60, 111, "server", BasicRecoverOk),
    (60, 120, "both", BasicNack),
    (85, 10, "client", ConfirmSelect),
    (85, 11, "server", ConfirmSelectOk),
    (90, 10, "client", TxSelect),
    (90, 20, "client", TxCommit),
    (90, 30, "client", TxRollback),
)

METHODS: dict[MethodId, type[Any]] = {MethodId(c, m): kind for c, m, _, kind in _TABLE}
IDS: dict[type[Any], MethodId] = {kind: number for number, kind in METHODS.items()}
SENT_BY_CLIENT = frozenset(kind for _, _, sender, kind in _TABLE if sender != "server")
Method: TypeAlias = Any  # one of the classes in the table: a tuple of what its fields are
