"""The JSON that the API answers and takes, as JSON Schema.

The fields are RabbitMQ's where it has them. Tests compare them with the rows that a server sends.
"""

import inspect
import re
from typing import Any

import msgspec

from segments.search.request import MAX_LIMIT
from streamd.http_api.description import Schema
from streamd.operations.tier_reports import (
    MOST_SECONDS,
    UPLOAD_SECONDS,
    Collected,
    StreamTier,
    TierStatus,
    Uploaded,
    Verification,
)

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT}
ANYTHING: Schema = {"type": "object"}
OPTIONAL_TEXT: Schema = {"type": ["string", "null"]}


def about(schema: Schema, description: str) -> Schema:
    """The schema with a description."""
    return {**schema, "description": description}


def text(description: str) -> Schema:
    """A string."""
    return about(TEXT, description)


def number(description: str) -> Schema:
    """An integer."""
    return about(NUMBER, description)


def flag(description: str) -> Schema:
    """True or false."""
    return about(FLAG, description)


def ref(name: str) -> Schema:
    """One of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def some(name: str) -> Schema:
    """A list of one of `SCHEMAS`."""
    return {"type": "array", "items": ref(name)}


def row(**fields: Schema) -> Schema:
    """An object with no other fields than these."""
    return {"type": "object", "properties": fields, "additionalProperties": False}


def body(*needed: str, **fields: Schema) -> Schema:
    """An object in a request; other fields are ignored."""
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", "properties": fields, **required}


def of(kind: type) -> Schema:
    """A record as it is sent, with what its docstring says of its attributes."""
    said = _attributes(inspect.getdoc(kind) or "")
    found = msgspec.json.schema(kind, schema_hook=lambda _: ANYTHING)
    named = {f"#/$defs/{name}": schema for name, schema in found.pop("$defs", {}).items()}
    schema = named.get(found.get("$ref", ""), found)

    def plain(field: Any) -> Any:  # noqa: ANN401 - a part of a schema
        if isinstance(field, list):
            return [plain(item) for item in field]
        if not isinstance(field, dict):
            return field
        if "$ref" in field:
            return plain(named[field["$ref"]])
        left_out = ("title", "default", "description")
        return {key: plain(value) for key, value in field.items() if key not in left_out}

    fields = {name: plain(field) for name, field in schema["properties"].items()}
    return row(**{n: about(f, said[n]) if n in said else f for n, f in fields.items()})


def _attributes(text: str) -> dict[str, str]:
    """What a docstring says of each attribute; one line may be about several."""
    _, _, block = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    for item in re.split(r"\n    (?=\S)", "\n" + block.split("\n\n")[0]):
        names, _, what = item.partition(": ")
        words = " ".join(what.split()).replace("None", "null")
        found |= {name: f"{words[:1].upper()}{words[1:]}" for name in names.split(", ")}
    return found


_COUNTS = {
    "messages": number("Messages."),
    "messages_ready": number("The same."),
    "messages_unacknowledged": number("0: a stream keeps its messages whoever has read them."),
}
_STREAM_ARGUMENTS = about(
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
    "The stream's arguments, each with `x-` before its name, and `x-queue-type`.",
)
_NUMBERS: Schema = {"type": "object", "additionalProperties": {"type": "integer"}}
_TAGS = about(
    {"anyOf": [TEXTS, TEXT]},
    "`administrator`, `monitoring`, `management`, `policymaker`; as a list, or one string with "
    "commas.",
)
_SWITCH: Schema = {"anyOf": [FLAG, {"type": "string", "enum": ["true", "false"]}]}
_PRODUCT = {
    "rabbitmq_version": text("The version of RabbitMQ that clients can take the server for."),
    "rabbit_version": text("The same."),
    "product_name": text("RabbitMQ: clients choose their requests by it."),
    "product_version": text("The same version."),
    "streamd_version": text("The version of streamd."),
}
_EXCHANGE = {
    "name": TEXT,
    "vhost": TEXT,
    "type": text("`direct`, `fanout`, `topic` or `headers`."),
    "durable": FLAG,
    "auto_delete": FLAG,
    "internal": FLAG,
    "arguments": about(
        ANYTHING, "`alternate-exchange`, and `x-super-stream` of those that could be one."
    ),
}
_BINDING = {
    "source": text("An exchange."),
    "vhost": TEXT,
    "destination": text("A stream or an exchange."),
    "destination_type": text("`queue` or `exchange`."),
    "routing_key": TEXT,
    "arguments": about(ANYTHING, "What a headers exchange compares; of a super stream, its order."),
}
_PERMISSION = {
    "user": TEXT,
    "vhost": TEXT,
    "configure": text("A regular expression, searched for in the names of streams and exchanges."),
    "write": text("The same."),
    "read": text("The same."),
}
_QUEUE = {
    "name": TEXT,
    "vhost": TEXT,
    "type": text("`stream`: every queue is one."),
    "durable": FLAG,
    "auto_delete": FLAG,
    "arguments": _STREAM_ARGUMENTS,
}
_USER = {
    "name": TEXT,
    "password_hash": text("In base64; as it was imported, or scrypt."),
    "hashing_algorithm": TEXT,
    "tags": TEXTS,
    "limits": about(ANYTHING, "Always empty."),
}
_CONNECTION_DETAILS = {"node": TEXT, "peer_host": TEXT, "peer_port": NUMBER, "user": TEXT}
_STREAM_OF = row(name=TEXT, vhost=TEXT)
_ACTIVE = {
    "active": flag("It gets messages; false for a single active consumer that waits."),
    "activity_status": text("`up`, `single_active` or `waiting`."),
}
_DEFINED = {
    "queues": some("DeclaredStream"),
    "exchanges": some("Exchange"),
    "bindings": some("DeclaredBinding"),
    "policies": about({"type": "array"}, "Always empty."),
    "parameters": about({"type": "array"}, "Always empty."),
}

SCHEMAS: dict[str, Schema] = {
    "FoundMessages": row(
        messages=some("FoundMessage"),
        complete=flag("These are all."),
        cut_by=about(
            {**OPTIONAL_TEXT, "enum": ["limit", "size", "budget", None]},
            "Why there may be more: the limit, the bytes of an answer, or the time and the bytes "
            "that a search may read.",
        ),
        next=about(OPTIONAL_TEXT, "The token for `after`, with which the same search goes on."),
        looked_at=about(
            {"type": "object", "additionalProperties": NUMBER},
            "What the search has looked at: segments, chunks, messages, bytes.",
        ),
        hint=about(
            OPTIONAL_TEXT,
            "Where nothing was found: what may be wrong with the question, as a property that no "
            "message has.",
        ),
    ),
    "FoundMessage": row(
        offset=number("Its number in the stream."),
        timestamp=text("When it was stored, as 2026-11-21T09:00:00.000Z."),
        body=text("The body, as a text or in base64."),
        encoding=text("`base64` where the body is not UTF-8."),
        value=about(
            {"anyOf": [TEXT, {"type": "number"}, FLAG, ANYTHING, {"type": "array"}]},
            "The body where it is an AMQP value.",
        ),
        properties=about(ANYTHING, "The application properties."),
        message_properties=about(ANYTHING, "The fixed properties that it has."),
        damaged=text("Why a part of it cannot be read."),
        raw=text("All its bytes, in base64, where a part cannot be read."),
    ),
    "NewMessage": body(
        "properties",
        "routing_key",
        "payload",
        "payload_encoding",
        properties=about(
            ANYTHING,
            "`headers` and the other properties of AMQP 0-9-1, as `content_type`. The header "
            "`x-stream-filter-value` is the filter value; without it that of the stream's filter "
            "property is taken.",
        ),
        routing_key=text("Of the default exchange: the name of the stream."),
        payload=text("The body; the whole request has at most 256 KiB."),
        payload_encoding=about({"enum": ["string", "base64"]}, "How the body is written here."),
    ),
    "RoutedMessage": row(routed=flag("It led to a stream, and is stored there.")),
    "NewGet": body(
        count=about(
            {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 1},
            "Messages at most.",
        ),
        offset=about(
            {"anyOf": [TEXT, NUMBER], "default": "first"},
            "Where to begin: `first`, an offset, or a time; `last`: the newest ones.",
        ),
        ackmode=about(
            {"enum": ["ack_requeue_true", "reject_requeue_true"], "default": "ack_requeue_true"},
            "Messages stay in a stream: RabbitMQ's modes that take them out are refused.",
        ),
        encoding=about(
            {"enum": ["auto", "base64"], "default": "auto"},
            "Of payloads; `auto`: those that are UTF-8 are strings.",
        ),
        truncate=number("Bytes of each payload, at most."),
    ),
    "GotMessage": row(
        offset=number("Its number in the stream."),
        payload_bytes=number("Of all of its payload."),
        redelivered=flag("Always false."),
        exchange=text("To which it was published; empty for the default one."),
        routing_key=text("With which it was published; the stream where that is not known."),
        message_count=number("Messages behind it."),
        properties=about(ANYTHING, "`headers` and the other properties, as over AMQP 0-9-1."),
        payload=text("The body, or its beginning."),
        payload_encoding=about({"enum": ["string", "base64"]}, "How the body is written here."),
    ),
    "Error": row(
        error=text("A word for programs."),
        reason=text("One sentence for people: what was found, what was expected, what to do."),
    ),
    "Health": row(
        status=text("`ok` or `failed`."),
        port=number("The port that was asked for."),
        role=text("Of a node of a cluster: `leader` or `standby`."),
        reason=text("Why it failed."),
        missing=text("The port that nobody listens on."),
        alarms=about(
            {"type": "array", "items": row(vhost=TEXT, queue=TEXT, resource=TEXT)},
            "The streams that accept no messages, and why.",
        ),
    ),
    "Overview": row(
        **_PRODUCT,
        management_version=text("The same version."),
        cluster_name=TEXT,
        node=TEXT,
        default_queue_type=TEXT,
        read_only=flag("It serves what another server stores in the tier, and changes nothing."),
        cluster=about(
            row(
                name=text("Of this node."),
                role=text("`leader` or `standby`."),
                leader=text("Name of the node that leads; empty where it is not known."),
                leader_address=text("Where clients of the stream protocol reach that one."),
                silent_seconds=number(
                    "How old its last heartbeat is, as far as this one has seen."
                ),
            ),
            "What the server is as a node of a cluster; left out where it is in none.",
        ),
        exchange_types={"type": "array", "items": row(name=TEXT, enabled=FLAG)},
        message_stats=about(ANYTHING, "Always empty."),
        queue_totals=about(row(**_COUNTS), "Of the virtual hosts that the user sees."),
        object_totals=about(
            row(
                channels=NUMBER,
                connections=NUMBER,
                consumers=NUMBER,
                exchanges=NUMBER,
                queues=NUMBER,
            ),
            "Of what the user sees.",
        ),
        background_faults=number(
            "Faults of the server's own tasks since its start. It survives them; its log has the "
            "details. For users who see everything."
        ),
        listeners=about(
            {
                "type": "array",
                "items": row(node=TEXT, protocol=TEXT, ip_address=TEXT, port=NUMBER),
            },
            "The open ports. For users who see everything.",
        ),
    ),
    "WhoAmI": row(name=TEXT, tags=TEXTS, is_internal_user=FLAG),
    "Node": row(
        name=TEXT,
        type=TEXT,
        running=FLAG,
        os_pid=TEXT,
        uptime=number("In ms."),
        processors={"type": ["integer", "null"]},
        fd_total=number("File descriptors that the server may use."),
        mem_used=number("The most memory it has used, in bytes."),
        mem_alarm=FLAG,
        disk_free=number("Where the data folder is, in bytes."),
        disk_free_alarm=flag("A stream accepts no messages."),
        rates_mode=TEXT,
    ),
    "Connection": row(
        name=TEXT,
        user_provided_name=OPTIONAL_TEXT,
        node=TEXT,
        type=TEXT,
        protocol=text("`stream` or `AMQP 0-9-1`."),
        state=TEXT,
        user=TEXT,
        user_who_performed_action=TEXT,
        vhost=TEXT,
        auth_mechanism=TEXT,
        client_properties=about(ANYTHING, "What the client says about itself."),
        host=text("The server's end."),
        port=NUMBER,
        peer_host=text("The client's end."),
        peer_port=NUMBER,
        ssl=flag("Inside TLS."),
        frame_max=number("In bytes."),
        timeout=number("Of the heartbeat, in seconds; 0 for none."),
        channel_max=NUMBER,
        channels=NUMBER,
        connected_at=number("In ms since 1970."),
        publishers=number("How many it has."),
        consumers=number("How many it has."),
    ),
    "Publisher": row(
        connection_details=row(name=TEXT, **_CONNECTION_DETAILS),
        queue=_STREAM_OF,
        publisher_id=NUMBER,
        reference=text("Its name, empty for none."),
        published=number("Messages, or entries where they are batched."),
        confirmed=NUMBER,
        errored=NUMBER,
    ),
    "Consumer": row(
        connection_details=row(name=TEXT, **_CONNECTION_DETAILS),
        queue=_STREAM_OF,
        subscription_id=NUMBER,
        credits=number("Chunks that may still be sent."),
        consumed=number("Messages sent."),
        offset=number("Of the last message that was sent or skipped."),
        offset_lag=number("Messages in the stream behind it."),
        **_ACTIVE,
        properties=about(ANYTHING, "What it was subscribed with."),
    ),
    "QueueConsumer": row(
        queue=_STREAM_OF,
        consumer_tag=TEXT,
        channel_details=row(name=TEXT, number=NUMBER, connection_name=TEXT, **_CONNECTION_DETAILS),
        arguments=about(ANYTHING, "What it was subscribed with."),
        ack_required=FLAG,
        exclusive=FLAG,
        prefetch_count=NUMBER,
        **_ACTIVE,
    ),
    "Stream": row(
        **_QUEUE,
        exclusive=FLAG,
        node=TEXT,
        leader=TEXT,
        members=TEXTS,
        online=TEXTS,
        policy={"type": "null"},
        consumers=NUMBER,
        readers=about(
            {"type": "object", "additionalProperties": NUMBER}, "The consumers of each node."
        ),
        state=text("`running`, or `down` when it cannot be used."),
        reason=text("Why it is down, or accepts no messages."),
        **_COUNTS,
        message_bytes=number("Bytes on the disk."),
        segments=NUMBER,
        segment_bytes_raised_to=number("The size of a segment, where there are very many."),
        key_index=about(
            row(
                sealed_segments=number("Full segments."),
                indexed_segments=number("Of those, with an index of their keys."),
                unknown_segments=number("Of those, not looked at since the server's start."),
                bytes=number("Of index files."),
            ),
            "How far the key index has come, where the stream has key properties.",
        ),
        chunks=NUMBER,
        first_offset=about({"type": ["integer", "null"]}, "Of the oldest message."),
        next_offset=number("That the next message will have."),
        first_timestamp=number("Of the oldest chunk, in ms since 1970."),
        tier=about(ref("StreamTier"), "What is in the tier, where the stream is in one."),
        consumer_details=about(some("QueueConsumer"), "In the answer for a single stream."),
    ),
    "DeclaredStream": row(**_QUEUE),
    "Tier": of(TierStatus),
    "StreamTier": of(StreamTier),
    "TierVerification": of(Verification),
    "NewCollection": body(dry_run=flag("Remove nothing, show what would be.")),
    "TierCollection": of(Collected),
    "NewUpload": body(
        timeout_seconds=number(
            f"That it may take, {UPLOAD_SECONDS} by default, at most {MOST_SECONDS}."
        )
    ),
    "TierUpload": of(Uploaded),
    "SuperStream": row(
        name=TEXT,
        vhost=TEXT,
        partitions={"type": "array", "items": row(routing_key=TEXT, stream=TEXT)},
    ),
    "Exchange": row(**_EXCHANGE),
    "DeclaredBinding": row(**_BINDING),
    "Binding": row(
        **_BINDING,
        properties_key=text("What tells it from other bindings of the same two ends."),
    ),
    "User": row(**_USER),
    "Permission": row(**_PERMISSION),
    "VirtualHost": row(
        name=TEXT,
        description=TEXT,
        tags=TEXTS,
        metadata=ANYTHING,
        default_queue_type=TEXT,
        cluster_state=about(ANYTHING, "`running`, for each node."),
        tracing=FLAG,
        **_COUNTS,
    ),
    "Definitions": row(
        **_PRODUCT,
        rabbitmq_definition_format=TEXT,
        original_cluster_name=TEXT,
        users=some("User"),
        vhosts={"type": "array", "items": row(name=TEXT)},
        permissions=some("Permission"),
        topic_permissions=about({"type": "array"}, "Always empty."),
        global_parameters=about({"type": "array"}, "Always empty."),
        **_DEFINED,
    ),
    "HostDefinitions": row(
        **_PRODUCT,
        rabbitmq_definition_format=TEXT,
        original_vhost_name=TEXT,
        **_DEFINED,
    ),
    "LeftOut": row(left_out=about(TEXTS, "What the server does not have, and why.")),
    "NewStream": body(
        arguments=_STREAM_ARGUMENTS,
        type=about({"const": "stream"}, "May also be the argument `x-queue-type`."),
        durable=about({"const": True}, "Streams are."),
        auto_delete=about({"const": False}, "Streams are not."),
    ),
    "Tracking": row(
        offsets=about(_NUMBERS, "The offset that each consumer has stored."),
        writers=about(_NUMBERS, "The last publishing id of each publisher with a name."),
        consumers=about(
            {
                "type": "array",
                "items": row(
                    reference=text("The name of the consumer."),
                    offset=number("That it has stored."),
                    messages_behind=number("Messages that follow it."),
                    seconds_behind=about(
                        {"type": ["number", "null"]}, "Since the first of them was written."
                    ),
                ),
            },
            "With `details`.",
        ),
    ),
    "Beginning": row(first_offset=number("Of the first message that is there now.")),
    "NewOffset": body(
        offset=number("Of the last message that the consumer has done."),
        timestamp=number("Instead: begin with the chunks written since then; in ms since 1970."),
        by=number("Instead: so many messages further, or back."),
        like=about(TEXT, "Instead: that of this consumer."),
        undo=about(FLAG, "Instead: what it was before its last change, at most an hour ago."),
        force=about(
            FLAG,
            "Also while a consumer of that name is connected; and undo a change although another "
            "offset was stored since.",
        ),
    ),
    "NewBeginning": body(
        offset=number("Of the first message to keep."),
        timestamp=number("Instead of `offset`: a time in ms since 1970; older chunks go."),
    ),
    "NewSuperStream": body(
        partitions=about(
            {"type": "integer", "minimum": 1, "maximum": 1000},
            "How many; their routing keys are the numbers from 0 on.",
        ),
        **{
            "binding-keys": about(
                {"anyOf": [TEXTS, TEXT]},
                "Instead, the routing key of each; a list, or one string with commas.",
            )
        },
        arguments=about(_STREAM_ARGUMENTS, "Of each partition, as of a stream."),
    ),
    "NewExchange": body(
        type=about(
            {"enum": ["direct", "fanout", "topic", "headers"], "default": "direct"}, "Its type."
        ),
        durable=about({**_SWITCH, "default": True}, "It survives a restart."),
        auto_delete=about({**_SWITCH, "default": False}, "It goes with its last binding."),
        internal=about({**_SWITCH, "default": False}, "Only exchanges can publish to it."),
        arguments=about(
            body(**{"alternate-exchange": TEXT, "x-super-stream": _SWITCH}),
            "A durable direct exchange without other properties becomes a super stream unless "
            "`x-super-stream` is false.",
        ),
    ),
    "NewBinding": body(
        routing_key=about({**TEXT, "default": ""}, "The routing or binding key."),
        arguments=about(
            {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
            "What a headers exchange compares.",
        ),
    ),
    "NewUser": body(
        "tags",
        password=text("It is kept as a scrypt hash."),
        password_hash=text("Instead, a hash in base64; empty: no password is accepted."),
        hashing_algorithm=text("Of that hash; `rabbit_password_hashing_sha256` if missing."),
        tags=_TAGS,
    ),
    "NewPermission": body(
        "configure",
        "write",
        "read",
        configure=_PERMISSION["configure"],
        write=_PERMISSION["write"],
        read=_PERMISSION["read"],
    ),
    "NewVirtualHost": about({}, "Nothing in it is used."),
    "NewDefinitions": about(
        body(
            **{
                name: {"type": "array", "items": ANYTHING}
                for name in ("vhosts", "users", "permissions", "queues", "exchanges", "bindings")
            }
        ),
        "As they are exported, by this server or by RabbitMQ.",
    ),
}
