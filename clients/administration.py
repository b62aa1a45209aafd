"""Everything but messages: streams, super streams, users, selectors."""

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clients.connection import ANSWER_SECONDS
from clients.errors import PreconditionFailed, StreamDoesNotExist, Unsupported, refusal
from clients.filters import SelectorRequest
from clients.reconnecting import ReconnectingConnection
from segments.selector import Dialect
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair

OK = ResponseCode.OK
_PART = 32_000  # characters of an operation's fields in one string of the protocol
# Operations of Manage that change nothing: those, and no others, are asked again when the
# connection was lost.
_QUERIES = frozenset(
    {
        "user.list",
        "vhost.list",
        "permission.list",
        "selector.list",
        "offset.list",
        "tier.status",
        "tier.stream",
        "tier.verify",
    }
)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a streamd server says about a stream.

    Attributes:
        name: of the stream.
        code: 1 when it can be used, else the reason.
        arguments: what it was declared with.
        figures: messages, chunks, bytes, segments, first_chunk_id, last_chunk_id,
            committed_offset, first_timestamp_ms, last_timestamp_ms.
    """

    name: str
    code: int
    arguments: dict[str, str]
    figures: dict[str, int]


class StandingSelector(NamedTuple):
    """A selector that a group has registered with a stream.

    Attributes:
        group: the name of the consumers that share it.
        dialect: union, rocketmq or amqp for SQL; tags for a tag expression.
        text: the selector, canonical.
        since: chunks from this offset on are skipped when they hold no match.
        consumers: of the group that are reading.
    """

    group: str
    dialect: str
    text: str
    since: int
    consumers: int


class StoredOffset(NamedTuple):
    """How far a consumer has come, as it has stored it on the server.

    Attributes:
        name: of the consumer.
        offset: of the last message that it is done with.
        messages_behind: that follow.
        seconds_behind: since the first of those was written, 0 if there is none; None where that
            cannot be read.
    """

    name: str
    offset: int
    messages_behind: int
    seconds_behind: float | None


class Administration:
    """What can be inspected and changed on a server."""

    def __init__(self, connection: ReconnectingConnection) -> None:
        self._connection = connection

    @property
    def is_streamd(self) -> bool:
        """The server is a streamd, with requests that others do not have."""
        return self._connection.is_streamd

    @property
    def is_read_only(self) -> bool:
        """The server serves what another one stores, and takes no messages."""
        return self._connection.is_read_only

    @property
    def server_properties(self) -> dict[str, str]:
        """What the server says about itself."""
        return dict(self._connection.server)

    # -- streams

    async def create(
        self,
        stream: str,
        *,
        filter_size: int | str | None = None,
        max_length_bytes: int | None = None,
        max_age: str | None = None,
        segment_size: int | None = None,
        arguments: dict[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a stream.

        Args:
            stream: its name.
            filter_size: bytes of a chunk's filter, 16 to 255, or "auto".
            max_length_bytes: drop the oldest segments while it is larger.
            max_age: drop segments that are older; a number and Y, M, D, h, m or s, as in "7D".
            segment_size: bytes after which a new segment begins.
            arguments: further ones, by their name in the protocol.
            exist_ok: it may be there already, declared with the same arguments.

        Raises:
            StreamExists: it is there already.
            PreconditionFailed: bad name or argument, or it is there with other arguments.
        """
        given = {
            "stream-filter-size-bytes": filter_size,
            "max-length-bytes": max_length_bytes,
            "max-age": max_age,
            "stream-max-segment-size-bytes": segment_size,
        }
        merged = {name: str(value) for name, value in given.items() if value is not None}
        merged |= arguments or {}
        pairs = tuple(Pair(*item) for item in merged.items())
        code = (await self._connection.request(c.Create, stream, pairs)).code
        if code == ResponseCode.PRECONDITION_FAILED:  # the protocol does not say which
            reason = "a stream of that name exists with other arguments"
            if not await self.exists(stream):
                given_text = ", ".join(f"{name}={value}" for name, value in merged.items())
                reason = f"bad name or argument ({given_text or 'no arguments'})"
            raise PreconditionFailed(code, f"cannot create {stream!r}: {reason}")
        if code != OK and not (exist_ok and code == ResponseCode.STREAM_EXISTS):
            raise refusal(code, f"cannot create {stream}")

    async def delete(self, stream: str, *, missing_ok: bool = False) -> None:
        """Delete a stream with everything in it.

        Raises:
            StreamDoesNotExist: there is none.
        """
        code = (await self._connection.request(c.Delete, stream)).code
        if code != OK and not (missing_ok and code == ResponseCode.STREAM_DOES_NOT_EXIST):
            raise refusal(code, f"cannot delete {stream}")

    async def exists(self, stream: str) -> bool:
        """Whether there is a stream of that name."""
        answer = await self._connection.ask(c.Metadata, (stream,))
        return any(found.code == OK for found in answer.streams)

    async def stats(self, stream: str) -> dict[str, int]:
        """Where a stream begins and ends.

        Returns:
            first_chunk_id, last_chunk_id, committed_chunk_id, committed_offset; -1 when
                it is empty.

        Raises:
            StreamDoesNotExist: there is none.
        """
        answer = await self._connection.ask(c.StreamStats, stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at {stream}")
        return dict(answer.statistics)

    async def describe(self, *streams: str) -> list[StreamInfo]:
        """What the server knows of streams, by name; of all when none is named.

        Raises:
            Unsupported: the server is not a streamd.
            StreamDoesNotExist: one that was named does not exist.
        """
        if not self._connection.is_streamd:
            raise Unsupported("only a streamd server describes its streams")
        answer = await self._connection.ask(c.DescribeStreams, streams)
        found = [
            StreamInfo(name, code, dict(arguments), dict(figures))
            for name, code, arguments, figures in answer.streams
        ]
        for info in found:
            if info.code == ResponseCode.STREAM_DOES_NOT_EXIST:
                raise StreamDoesNotExist(info.code, f"cannot look at {info.name}")
        return found

    async def describe_filters(self, stream: str) -> dict[str, int]:
        """How well the filters of the newest chunks of a stream work.

        Returns:
            The number of `chunks` with a filter, of `chunks_seen` with one or without, of
            different `values` in them, of a further filter property such as kind also as
            `values.kind`, and of `places`, in how many chunks each value is, in sum, `places.kind`
            likewise; and where a chunk has a filter, in parts per million, the share of bits that
            are set (`fill_ppm`) and the share of chunks that a filter lets pass for a value they do
            not hold: `predicted_ppm` from the bits, `observed_ppm` as counted.

        Raises:
            Unsupported: the server is not a streamd.
            ServerRefused: the server refused.
        """
        if not self._connection.is_streamd:
            raise Unsupported("only a streamd server describes its filters")
        answer = await self._connection.ask(c.DescribeFilters, stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at the filters of {stream}")
        return dict(answer.statistics)

    async def query_offset(self, stream: str, name: str) -> int:
        """The offset that the consumer `name` has stored.

        Raises:
            NoOffset: it has stored none.
        """
        answer = await self._connection.ask(c.QueryOffset, name, stream)
        if answer.code != OK:
            raise refusal(answer.code, f"no offset of {name} in {stream}")
        offset: int = answer.offset
        return offset

    async def offsets(self, stream: str) -> list[StoredOffset]:
        """The offsets that consumers have stored in a stream, by the name of the consumer.

        Raises:
            Unsupported: the server is not a streamd.
            StreamDoesNotExist: there is no such stream.
            AccessRefused: the user may not read it.
        """
        return [
            StoredOffset(
                row["name"],
                int(row["offset"]),
                int(row["messages_behind"]),
                float(row["seconds_behind"]) if row["seconds_behind"] else None,
            )
            for row in await self.manage("offset.list", stream=stream)
        ]

    async def set_offset(self, stream: str, name: str, offset: int, *, force: bool = False) -> None:
        """Store an offset for the consumer `name`; it is kept when this returns.

        Args:
            stream: which the consumer reads.
            name: of the consumer.
            offset: of the last message that it is done with.
            force: also while it is connected: it goes on where it is, and stores its own again.

        Raises:
            PreconditionFailed: the offset or the name cannot be stored, or it is connected.
        """
        words = {"stream": stream, "name": name, "force": str(force).lower()}
        await self.manage("offset.set", offset=str(offset), **words)

    async def delete_offset(self, stream: str, name: str, *, force: bool = False) -> None:
        """Forget the offset that the consumer `name` has stored; see `set_offset`.

        Raises:
            PreconditionFailed: it has stored none, or is connected.
        """
        words = {"stream": stream, "name": name, "force": str(force).lower()}
        await self.manage("offset.delete", **words)

    async def truncate(
        self, stream: str, *, before: int | None = None, before_time_ms: int | None = None
    ) -> int:
        """Remove the messages before an offset or a time, for good; the others keep their offsets.

        Args:
            stream: its name.
            before: the offset of the first message to keep. The chunk that holds it is kept as a
                whole.
            before_time_ms: instead, a time in ms since 1970: chunks written earlier go.

        Returns:
            The first offset that the stream has then.

        Raises:
            ValueError: none of the two is given, or both are.
            AccessRefused: the user may not configure the stream.
        """
        if (before is None) == (before_time_ms is None):
            raise ValueError("truncate needs either before or before_time_ms")
        where = {"offset": str(before)} if before is not None else {}
        where |= {"timestamp": str(before_time_ms)} if before_time_ms is not None else {}
        (row,) = await self.manage("stream.truncate", stream=stream, **where)
        return int(row["first_offset"])

    # -- super streams

    async def create_super_stream(
        self,
        name: str,
        partitions: int | Collection[str],
        *,
        arguments: dict[str, str] | None = None,
    ) -> None:
        """Create a super stream: streams that together are one.

        Args:
            name: its name; partitions are called name-0, name-1, …, or after their routing keys.
            partitions: how many, or a routing key for each.
            arguments: of each partition, by their name in the protocol.

        Raises:
            StreamExists: it, or a stream of a partition's name, is there already.
            PreconditionFailed: bad name or argument, no partitions or too many.
            ValueError: `partitions` is one routing key.
        """
        if isinstance(partitions, str):
            raise ValueError(f"partitions is {partitions!r}, expected [{partitions!r}] or a number")
        keys = list(map(str, range(partitions))) if isinstance(partitions, int) else partitions
        streams = tuple(f"{name}-{key}" for key in keys)
        pairs = tuple(Pair(*item) for item in (arguments or {}).items())
        answer = await self._connection.request(
            c.CreateSuperStream, name, streams, tuple(keys), pairs
        )
        if answer.code != OK:
            raise refusal(answer.code, f"cannot create super stream {name}")

    async def delete_super_stream(self, name: str) -> None:
        """Delete a super stream with everything in its partitions.

        Raises:
            StreamDoesNotExist: there is none.
        """
        code = (await self._connection.request(c.DeleteSuperStream, name)).code
        if code != OK:
            raise refusal(code, f"cannot delete super stream {name}")

    async def partitions(self, super_stream: str) -> list[str]:
        """The streams of a super stream, in their order.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        answer = await self._connection.ask(c.Partitions, super_stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at super stream {super_stream}")
        return list(answer.streams)

    async def route(self, super_stream: str, routing_key: str) -> list[str]:
        """The streams of a super stream that a routing key leads to, possibly none.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        answer = await self._connection.ask(c.Route, routing_key, super_stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at super stream {super_stream}")
        return list(answer.streams)

    # -- users, permissions, virtual hosts

    async def manage(self, operation: str, **arguments: str) -> list[dict[str, str]]:
        """Look at or change users, permissions and virtual hosts, as an administrator.

        Args:
            operation: user.add, user.list, user.delete, user.passwd, user.tags, vhost.add,
                vhost.list, vhost.delete, permission.set, permission.list or permission.clear.
            arguments: name, password and tags of a user; name of a virtual host; user, vhost,
                configure, write and read of a permission.

        Returns:
            What a list found.

        Raises:
            Unsupported: the server is not a streamd.
            AccessRefused: the user is not an administrator.
            PreconditionFailed: it does not fit; says why.
        """
        return await self._manage(operation, arguments, ANSWER_SECONDS)

    async def _manage(
        self,
        operation: str,
        arguments: Mapping[str, str],
        seconds: float | None,
        *,
        changes: bool | None = None,
    ) -> list[dict[str, str]]:
        if not self._connection.is_streamd:
            raise Unsupported("only a streamd server is managed over the stream protocol")
        pairs = tuple(Pair(*item) for item in arguments.items())
        connection = self._connection
        is_query = operation in _QUERIES if changes is None else not changes
        send = connection.ask if is_query else connection.request
        answer = await send(c.Manage, operation, pairs, seconds=seconds)
        if answer.code == ResponseCode.STREAM_DOES_NOT_EXIST:  # the reason is its name
            words = answer.reason if changes is not None else f"{operation} {answer.reason}"
            raise refusal(answer.code, words.rstrip())
        if answer.code != OK:
            what = f"{operation} is refused" if changes is None else ""
            raise refusal(answer.code, what, answer.reason)
        return [dict(row) for row in answer.rows]

    async def carry_out(
        self, operation: str, fields: bytes, *, changes: bool, seconds: float | None = None
    ) -> bytes:
        """Have the server carry out any of its operations.

        Args:
            operation: its name.
            fields: its fields, in msgpack.
            changes: it changes something, so it is not asked for again when the connection is lost.
            seconds: how long to wait for the answer; None waits for ever.

        Returns:
            The answer, in msgpack.

        Raises:
            Unsupported: the server is not a streamd, or does not know it.
            AccessRefused, PreconditionFailed, StreamDoesNotExist: it is refused; says why.
        """
        text = base64.b64encode(fields).decode("ascii")
        words = {"fields": text[:_PART]}
        words |= {f"fields.{at}": text[at : at + _PART] for at in range(_PART, len(text), _PART)}
        rows = await self._manage(operation, words, seconds, changes=changes)
        try:
            return base64.b64decode("".join(row["answer"] for row in rows))
        except KeyError:
            raise Unsupported(f"the server is older, and does not know {operation} so") from None

    async def tier_report(self, operation: str, **arguments: str) -> list[dict[str, str]]:
        """What the server tells of its tier; waits as long as the object store takes.

        Args:
            operation: tier.status for users with the tag monitoring, tier.stream for those who may
                read the stream, tier.verify, tier.gc or tier.upload for administrators.
            arguments: the name of a stream; dry_run, true or false, of tier.gc; of tier.upload
                names as stream.0, stream.1 and so on, none for all streams, and seconds that it
                may take.

        Returns:
            The report, and behind it a row for each stream, fault or orphan in it.

        Raises:
            Unsupported: the server is not a streamd.
            AccessRefused: the user may not ask for that.
            PreconditionFailed: the server has no tier; or another reason, which it says.
            ServerRefused: the object store cannot be asked.
        """
        return await self._manage(operation, arguments, None)

    async def set_arguments(self, stream: str, arguments: dict[str, str]) -> None:
        """Change the arguments of a stream; takes effect with the next chunk.

        Args:
            stream: its name.
            arguments: by their name in the protocol, as of a filter, chunks, segments or
                retention; an empty string is the default.

        Raises:
            PreconditionFailed: one of them cannot be changed or read; says which.
            StreamDoesNotExist: there is no such stream.
        """
        await self.manage("stream.set", stream=stream, **arguments)

    # -- standing selectors

    async def register_selector(
        self,
        stream: str,
        group: str,
        *,
        sql: str | None = None,
        tags: str | None = None,
        dialect: str = Dialect.UNION,
    ) -> None:
        """Have the server find a group's messages while they are published.

        From now on each chunk that holds a match is marked for the group, and its consumers
        (`consumer(…, group=…)`) skip all others, whatever the selector says. Registering
        the same selector again changes nothing.

        Raises:
            PreconditionFailed: it is not a selector or uses UTC(), there are too many groups, or
                the group's consumers rely on another one.
            StreamDoesNotExist: there is no such stream.
        """
        kind, text = SelectorRequest(sql, tags, dialect).kind_and_text()
        arguments = {"stream": stream, "group": group, "dialect": kind, "text": text}
        await self.manage("selector.add", **arguments)

    async def unregister_selector(self, stream: str, group: str) -> None:
        """Remove a group's selector; its consumers must be gone.

        Raises:
            PreconditionFailed: the group has none, or its consumers rely on it.
        """
        await self.manage("selector.delete", stream=stream, group=group)

    async def selectors(self, stream: str) -> list[StandingSelector]:
        """The standing selectors of a stream, by group."""
        rows = await self.manage("selector.list", stream=stream)
        return [
            StandingSelector(
                row["group"], row["dialect"], row["text"], int(row["since"]), int(row["consumers"])
            )
            for row in rows
        ]
