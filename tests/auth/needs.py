"""What each command, method and path needs: one table for all protocols.

Source: rabbitmq/rabbitmq-website, docs/access-control.md and docs/management/index.md;
rabbitmq/rabbitmq-server, deps/rabbitmq_stream/src/rabbit_stream_utils.erl,
deps/rabbit/src/rabbit_channel.erl and deps/rabbitmq_management/src/rabbit_mgmt_util.erl. Paths need
the tag `management` at least; what an administrator alone may do needs no permission.

The virtual host / has the stream s, the super stream super with the partitions super-0 and
super-1, the exchange x with a binding to s under the key k, and the exchange y. Another virtual
host has things whose names contain "secret".
"""

from typing import Any, NamedTuple

from segments.selector import Dialect
from streamd.operations.rights import Right
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp10 import performatives as p
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.support.amqp import STREAM as STREAM_TYPE, exchange
from tests.support.server import FIRST

# A right to a resource; of several in one tuple, each is enough.
Need = tuple[tuple[Right, str], ...]
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


class Case(NamedTuple):
    """A request and what it needs.

    Attributes:
        fields: of the command or method; of a path, its body.
        needs: all of them.
        is_for_administrators: it needs the tag.
    """

    fields: Any
    needs: tuple[Need, ...] = ()
    is_for_administrators: bool = False


def configure(*names: str) -> tuple[Need, ...]:
    return tuple(((Right.CONFIGURE, name),) for name in names)


def write(*names: str) -> tuple[Need, ...]:
    return tuple(((Right.WRITE, name),) for name in names)


def read(*names: str) -> tuple[Need, ...]:
    return tuple(((Right.READ, name),) for name in names)


def either(*names: str, rights: tuple[Right, ...] = (Right.READ, Right.WRITE)) -> tuple[Need, ...]:
    return tuple(tuple((right, name) for right in rights) for name in names)


def anything(*names: str) -> tuple[Need, ...]:
    return either(*names, rights=tuple(Right))


def super_stream(name: str, *partitions: str) -> tuple[Need, ...]:
    return configure(name, *partitions) + read(name) + write(*partitions)


STREAM: dict[type[Any], Case] = {
    c.DeclarePublisher: Case((1, "", "s"), write("s")),
    c.QueryPublisherSequence: Case(("r", "s"), read("s")),
    c.Subscribe: Case((1, "s", FIRST, 1, ()), read("s")),
    c.QueryOffset: Case(("r", "s"), read("s")),
    c.Create: Case(("new", ()), configure("new")),
    c.Delete: Case(("s",), configure("s")),
    c.Metadata: Case((("s",),), either("s")),
    c.Route: Case(("0", "super"), write("super", "super-0")),
    c.Partitions: Case(("super",), either("super", "super-0", "super-1")),
    c.StreamStats: Case(("s",), read("s")),
    c.ResolveOffsetSpec: Case(("s", FIRST), read("s")),
    c.CreateSuperStream: Case(
        ("new", ("new-0", "new-1"), ("0", "1"), ()), super_stream("new", "new-0", "new-1")
    ),
    c.DeleteSuperStream: Case(("super",), super_stream("super", "super-0", "super-1")),
    c.DescribeStreams: Case((("s",),), read("s")),
    c.DescribeFilters: Case(("s",), read("s")),
    c.Find: Case(("s", ()), read("s")),
}
# Of a publisher or subscription that exists only while there is the right; of the connection.
STREAM_WITHOUT_NEEDS = {
    c.Publish,
    c.PublishFiltered,
    c.DeletePublisher,
    c.Credit,
    c.Unsubscribe,
    c.ConsumerUpdateResponse,
    c.DescribeSubscription,
    c.PeerProperties,
    c.SaslHandshake,
    c.SaslAuthenticate,
    c.Tune,
    c.Open,
    c.Close,
    c.CloseResponse,
    c.Heartbeat,
    c.ExchangeCommandVersions,
}
# StoreOffset has no answer; Manage has operations.
STREAM_APART = {c.StoreOffset, c.Manage}


def _managed(needs: tuple[Need, ...] | None, **arguments: str) -> Case:
    pairs = tuple(Pair(*item) for item in arguments.items())
    return Case(pairs, needs or (), needs is None)


MANAGE: dict[str, Case] = {
    "user.add": _managed(None, name="new", password="p"),
    "user.list": _managed(None),
    "user.delete": _managed(None, name="bob"),
    "user.tags": _managed(None, name="bob", tags="management"),
    "user.passwd": _managed(None, name="bob", password="p"),
    "vhost.add": _managed(None, name="new"),
    "vhost.list": _managed(()),  # shows what the caller may see
    "vhost.delete": _managed(None, name="hidden"),
    "permission.set": _managed(None, user="bob", vhost="/", **EVERYTHING),
    "permission.list": _managed(None),
    "permission.clear": _managed(None, user="bob", vhost="hidden"),
    "selector.add": _managed(
        configure("s"), stream="s", group="h", dialect=Dialect.UNION, text="a = 1"
    ),
    "selector.list": _managed(read("s"), stream="s"),
    "selector.delete": _managed(configure("s"), stream="s", group="g"),
    "stream.set": _managed(configure("s"), stream="s", **{"max-age": "1h"}),
    "stream.truncate": _managed(configure("s"), stream="s", offset="5"),
    "offset.list": _managed(read("s"), stream="s"),
    "offset.set": _managed(read("s"), stream="s", name="r", offset="5"),
    "offset.delete": _managed(read("s"), stream="s", name="reader"),
    "tier.status": _managed(None),  # or with the tag monitoring
    "tier.stream": _managed(read("s"), stream="s"),
    "tier.verify": _managed(None, stream="s"),
    "tier.gc": _managed(None, dry_run="false"),
    "tier.upload": _managed(None, **{"stream.0": "s"}),
}

# They change a stream's log or the tier, not the catalog, for whose turn they would have to wait.
OF_THE_TIER = {"tier.status", "tier.stream", "tier.verify", "tier.gc", "tier.upload"}
OF_A_LOG = {"stream.truncate", "offset.set", "offset.delete"} | OF_THE_TIER

AMQP: dict[str, Case] = {
    "QueueDeclare": Case(
        m.QueueDeclare(0, "new", False, True, False, False, False, STREAM_TYPE), configure("new")
    ),
    "QueueDeclare passive": Case(
        m.QueueDeclare(0, "s", True, True, False, False, False, {}), anything("s")
    ),
    "QueueBind": Case(m.QueueBind(0, "s", "y", "k", False, {}), write("s") + read("y")),
    "QueueUnbind": Case(m.QueueUnbind(0, "s", "x", "k", {}), write("s") + read("x")),
    "QueuePurge": Case(m.QueuePurge(0, "s", False), read("s")),
    "QueueDelete": Case(m.QueueDelete(0, "s", False, False, False), configure("s")),
    "ExchangeDeclare": Case(exchange("new"), configure("new")),
    "ExchangeDeclare alternate": Case(
        exchange("new", alternate_exchange="y"), configure("new") + read("new") + write("y")
    ),
    "ExchangeDeclare passive": Case(exchange("x", passive=True), anything("x")),
    "ExchangeDelete": Case(m.ExchangeDelete(0, "x", False, False), configure("x")),
    "ExchangeBind": Case(m.ExchangeBind(0, "y", "x", "k", False, {}), write("y") + read("x")),
    "ExchangeUnbind": Case(m.ExchangeUnbind(0, "y", "x", "k", False, {}), write("y") + read("x")),
    "BasicConsume": Case(m.BasicConsume(0, "s", "t", False, False, False, False, {}), read("s")),
    "BasicGet": Case(m.BasicGet(0, "s", False), read("s")),
    "BasicPublish": Case(m.BasicPublish(0, "x", "k", False, False), write("x")),
    "BasicPublish default": Case(m.BasicPublish(0, "", "s", False, False), write("amq.default")),
}
# Of AMQP 1.0: links, and what is asked of the management node: method, path, body.
_NEW_STREAM = {"durable": True, "arguments": {"x-queue-type": "stream"}}
_BINDING = {"source": "y", "destination_queue": "s", "binding_key": "k", "arguments": {}}
AMQP10: dict[str, Case] = {
    "Attach, reads": Case(p.Attach("r", 9, p.RECEIVER, source=p.Source("/queues/s")), read("s")),
    "Attach, writes": Case(
        p.Attach("w", 9, p.SENDER, target=p.Target("/exchanges/x/k"), initial_delivery_count=0),
        write("x"),
    ),
    "Attach, writes to a queue": Case(
        p.Attach("w", 9, p.SENDER, target=p.Target("/queues/s"), initial_delivery_count=0),
        write("amq.default"),
    ),
    "PUT queue": Case(("PUT", "/queues/new", _NEW_STREAM), configure("new")),
    "DELETE queue": Case(("DELETE", "/queues/s", None), configure("s")),
    "PUT exchange": Case(("PUT", "/exchanges/new", {"type": "direct"}), configure("new")),
    "DELETE exchange": Case(("DELETE", "/exchanges/x", None), configure("x")),
    "POST binding": Case(("POST", "/bindings", _BINDING), write("s") + read("y")),
    "DELETE binding": Case(
        ("DELETE", "/bindings/src=x;dstq=s;key=k;args=", None), write("s") + read("x")
    ),
}
# Of the connection or of a channel; about consumers and messages of the channel itself.
AMQP_WITHOUT_NEEDS = {
    *(kind for kind in m.SENT_BY_CLIENT if kind.__name__.startswith(("Connection", "Channel"))),
    m.AccessRequest,
    m.BasicQos,
    m.BasicCancel,
    m.BasicCancelOk,
    m.BasicAck,
    m.BasicReject,
    m.BasicNack,
    m.BasicRecover,
    m.BasicRecoverAsync,
    m.ConfirmSelect,
    m.TxSelect,
    m.TxCommit,
    m.TxRollback,
}

_NOBODY = {"password_hash": "", "tags": ""}


def administrators(body: Any = None) -> Case:
    return Case(body, is_for_administrators=True)


# The body and the needs of each request; the parts of its path are in `FILLED`.
HTTP: dict[str, Case] = {
    "PUT /api/queues/{vhost}/{name}": Case({}, configure("s")),
    "DELETE /api/queues/{vhost}/{name}": Case(None, configure("s")),
    "PUT /api/stream/{vhost}/{name}/tracking/{reference}": Case({"offset": 5}, read("s")),
    "DELETE /api/stream/{vhost}/{name}/tracking/{reference}": Case(None, read("s")),
    "POST /api/stream/{vhost}/{name}/truncate": Case({"offset": 5}, configure("s")),
    "PUT /api/stream/super-streams/{vhost}/{name}": Case(
        {"partitions": 2}, super_stream("s", "s-0", "s-1")
    ),
    "DELETE /api/stream/super-streams/{vhost}/{name}": Case(
        None, super_stream("super", "super-0", "super-1")
    ),
    "GET /api/stream/{vhost}/{name}/messages": Case(None, read("s")),
    "PUT /api/exchanges/{vhost}/{name}": Case(
        {"arguments": {"alternate-exchange": "y"}}, configure("s") + read("s") + write("y")
    ),
    "DELETE /api/exchanges/{vhost}/{name}": Case(None, configure("x")),
    "POST /api/exchanges/{vhost}/{name}/publish": Case(
        {"properties": {}, "routing_key": "k", "payload": "m", "payload_encoding": "string"},
        write("x"),
    ),
    "POST /api/queues/{vhost}/{name}/get": Case({}, read("s")),
    "POST /api/bindings/{vhost}/e/{source}/{kind}/{destination}": Case(
        {"routing_key": "new"}, read("x") + write("s")
    ),
    "DELETE /api/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}": Case(
        None, read("x") + write("s")
    ),
    "PUT /api/users/{user}": administrators(_NOBODY),
    "DELETE /api/users/{user}": administrators(),
    "PUT /api/permissions/{vhost}/{user}": administrators(EVERYTHING),
    "DELETE /api/permissions/{vhost}/{user}": administrators(),
    "PUT /api/vhosts/{vhost}": administrators({}),
    "DELETE /api/vhosts/{vhost}": administrators(),
    "POST /api/definitions": administrators({"vhosts": [{"name": "new"}]}),
    "POST /api/definitions/{vhost}": administrators(
        {"queues": [{"name": "new", "arguments": {"x-queue-type": "stream"}}]}
    ),
    "DELETE /api/connections/{name}": administrators(),
    "DELETE /api/stream/connections/{vhost}/{name}": administrators(),
    "DELETE /api/connections/username/{user}": Case(None),  # one's own; of others it sees none
    "GET /api/users": administrators(),
    "GET /api/users/{user}": administrators(),
    "GET /api/permissions": administrators(),
    "GET /api/permissions/{vhost}/{user}": administrators(),
    "GET /api/vhosts/{vhost}/permissions": administrators(),
    "GET /api/users/{user}/permissions": administrators(),  # or of the caller itself
    "GET /api/definitions": administrators(),
    "GET /api/definitions/{vhost}": administrators(),
    "POST /api/tier/streams/{vhost}/{name}/verify": administrators(),
    "POST /api/tier/streams/{vhost}/{name}/upload": administrators(),
    "POST /api/tier/upload": administrators(),
    "POST /api/tier/gc": administrators({"dry_run": False}),
    "GET /api/tier": administrators(),  # or with the tag monitoring
    "GET /api/nodes": administrators(),  # or with the tag monitoring
    "GET /api/nodes/{name}": administrators(),
    # Of other users, who are in the way below.
    "GET /api/connections/{name}": administrators(),
    "GET /api/stream/connections/{vhost}/{name}": administrators(),
    "GET /api/stream/connections/{vhost}/{name}/publishers": administrators(),
    "GET /api/stream/connections/{vhost}/{name}/consumers": administrators(),
}
# For everybody with a tag; what they show is what the caller may see.
HTTP_WITHOUT_NEEDS = {
    f"GET /api/{path}"
    for path in (
        "overview",
        "whoami",
        "version",
        "cluster-name",
        "channels",
        "openapi.json",
        "health/checks/alarms",
        "health/checks/local-alarms",
        "health/checks/port-listener/{port}",
        "connections",
        "connections/username/{user}",
        "stream/connections",
        "stream/publishers",
        "stream/consumers",
        "consumers",
        "queues",
        "exchanges",
        "bindings",
        "stream/super-streams",
        "vhosts",
    )
}
# For everybody, without a login.
HTTP_WITHOUT_LOGIN = {"GET /healthz", "GET /readyz"}
# For those who may enter the virtual host in the path.
HTTP_OF_A_HOST = {
    f"GET /api/{path}"
    for path in (
        "aliveness-test/{vhost}",
        "vhosts/{vhost}",
        "vhosts/{vhost}/connections",
        "stream/connections/{vhost}",
        "stream/publishers/{vhost}",
        "stream/publishers/{vhost}/{stream}",
        "stream/consumers/{vhost}",
        "consumers/{vhost}",
        "queues/{vhost}",
        "queues/{vhost}/{name}",
        "queues/{vhost}/{name}/bindings",
        "exchanges/{vhost}",
        "exchanges/{vhost}/{name}",
        "exchanges/{vhost}/{name}/bindings/source",
        "exchanges/{vhost}/{name}/bindings/destination",
        "bindings/{vhost}",
        "bindings/{vhost}/e/{source}/{kind}/{destination}",
        "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}",
        "stream/super-streams/{vhost}",
        "stream/super-streams/{vhost}/{name}",
        "stream/{vhost}/{name}/tracking",
        "tier/streams/{vhost}/{name}",
    )
}
FILLED = {
    "vhost": "%2F",
    "name": "s",
    "stream": "s",
    "user": "bob",
    "source": "x",
    "kind": "q",
    "destination": "s",
    "key": "k",
    "port": "5552",
    "reference": "reader",
}
