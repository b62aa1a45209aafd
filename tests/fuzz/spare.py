"""What clients say here and there: frames that may come anywhere in a conversation."""

from typing import Any

from segments.amqp10 import Opaque, Symbol, encode_map
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import HEARTBEAT_FRAME, method_frame
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import HEARTBEAT_FRAME as HEARTBEAT10, frame as frame10
from streamd.wire.amqp10.values import Described, Uint, write_value
from streamd.wire.stream import codec, commands as c
from streamd.wire.stream.fields import OffsetSpecification, Pair

SPARE_COMMANDS = [
    codec.encode(command)
    for command in (
        c.DeclarePublisher(1, 1, "app", "s"),
        c.Publish(7, 1, bytes(12)),
        c.PublishFiltered(1, 1, bytes(14)),
        c.Subscribe(1, 9, "s", OffsetSpecification(4, (1 << 64) - 1), 0, ()),
        c.Credit(200, 65_535),
        c.StoreOffset("", "s", 0),
        c.SaslHandshake(1),
        c.Tune(1, 1),
        c.Open(1, "/"),
        c.CloseResponse(1, 1),
        c.ConsumerUpdateResponse(0, 1, OffsetSpecification(4, 0)),
        c.Deliver(1, bytes(48)),
        c.CreateSuperStream(1, "p", ("p-0",) * 3, ("0",) * 3, ()),
        c.Manage(1, "stream.set", (Pair("stream", "s"), Pair("max-age", ""))),
        c.Delete(1, "s"),
    )
]

# -- AMQP 0-9-1

SPARE_METHODS = [
    *(
        method_frame(1, method)
        for method in (
            m.BasicGet(0, "s", False),
            m.BasicReject(1, True),
            m.BasicAck(0, True),
            m.BasicRecoverAsync(True),
            m.QueuePurge(0, "s", False),
            m.ChannelFlow(False),
            m.ChannelFlow(True),
            m.TxSelect(),
            m.ConfirmSelect(True),
            m.QueueDelete(0, "s", False, False, True),
            m.ExchangeDelete(0, "amq.topic", False, True),
            m.ExchangeBind(0, "x", "x", "", True, {}),
            m.ChannelCloseOk(),
            m.ChannelClose(1, "x", 0, 0),
            m.BasicDeliver("c", 1, False, "", ""),
        )
    ),
    *(method_frame(number, m.ChannelOpen()) for number in (0, 1, 2, 65_535)),
    method_frame(0, m.ConnectionUpdateSecret(b"x", "y")),
    method_frame(0, m.ConnectionCloseOk()),
    HEARTBEAT_FRAME,
]


# -- AMQP 1.0

_FILTERS: dict[str, Any] = {
    "rabbitmq:stream-offset-spec": "first",
    "rabbitmq:stream-filter": ["a", "b"],
    "rabbitmq:stream-match-unfiltered": True,
    "sql-filter": ("amqp:sql-filter", "a = 1 AND b IS NULL"),
    "streamd:tag": "a || b",
    "p": ("amqp:properties-filter", {Symbol("subject"): "&p:x", Symbol("group-sequence"): Uint(1)}),
    "q": ("amqp:application-properties-filter", {"a": 1, "b": None}),
}


def _filter_of(*names: str) -> Opaque:
    items: list[bytes] = []
    for name in names:
        given = _FILTERS[name]
        descriptor, value = given if isinstance(given, tuple) else (name, given)
        items += (write_value(Symbol(name)), write_value(Described(Symbol(descriptor), value)))
    return Opaque(encode_map(items))


SPARE_PERFORMATIVES = (
    *(
        frame10(0, p.Attach(name, 9, role, *modes, source=source, target=target, properties=more))
        for name, role, modes, source, target, more in (
            ("a", True, (1, 0), p.Source("/queues/s", filter=_filter_of(*_FILTERS)), None, None),
            ("b", True, (0, 1), p.Source("/queues/s", dynamic=True), p.Target(), None),
            ("c", False, (2, 0), None, p.Target("/exchanges/amq.topic/a.b"), None),
            ("d", False, (2, 0), p.Source(), p.Coordinator(), None),
            ("m", False, (1, 0), p.Source("me"), p.Target("/management"), {Symbol("paired"): True}),
        )
    ),
    frame10(0, p.Flow(0, 0, 0, 0)),
    frame10(0, p.Flow(0, 100, 0, 100, 1, 0, 50, 0, True, True)),
    frame10(0, p.Disposition(True, 0, 1_000_000, False, p.Modified(True, True))),
    frame10(0, p.Disposition(True, 0, None, True, p.Rejected(p.Error("amqp:x", "why")))),
    frame10(0, p.Transfer(0, 90, b"t", 0, False, True), b"\0\x53\x75\xa0\x01"),
    frame10(0, p.Transfer(0), b"x"),
    frame10(0, p.Transfer(0, 91, b"t", 0, True, aborted=True)),
    frame10(0, p.Detach(0, False)),
    frame10(1, p.Begin(None, 5, 1, 1, 3)),
    frame10(0, p.End()),
    frame10(0, p.Close(p.Error("amqp:y"))),
    HEARTBEAT10,
)
