"""Operations of Manage about the tier; see streamd.broker.tier.reports."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import TypeAlias

from streamd.auth.users import Right
from streamd.broker.declared.names import as_sent
from streamd.broker.steps import in_turns
from streamd.broker.tier.reports import (
    UPLOAD_SECONDS,
    check_seconds,
    required,
    status_of,
    store_errors_refuse,
    to_row,
)
from streamd.connections.stream.context import Context

Arguments: TypeAlias = Mapping[str, str]
Row: TypeAlias = dict[str, str]
_STREAMS_A_TURN = 100
_NAMED = "stream."  # begins what names one of several streams
_DIGITS = 9  # of seconds


class TierOperations:
    """What may be asked of the tier. The first row is the report, each further one an item of it.

    Attributes:
        operations: by name; each checks the user's rights.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker
        self.operations: dict[str, Callable[[Arguments], Awaitable[Iterable[Row]]]] = {
            "tier.status": self._status,
            "tier.stream": self._stream,
            "tier.verify": self._verify,
            "tier.gc": self._collect,
            "tier.upload": self._upload,
        }

    async def _status(self, _arguments: Arguments) -> Iterable[Row]:
        """The tier, and all streams that are in it."""
        self._context.rights.require_monitoring()
        tier = self._broker.tier
        rows = [to_row(await status_of(tier))]
        hosts = self._broker.virtual_hosts.values() if tier is not None else ()
        names = [(host.name, name) for host in hosts for name in host.names()]
        async for host, name in in_turns(sorted(names), _STREAMS_A_TURN):
            found = tier.stream(host, name) if tier is not None else None
            if found is not None:
                rows.append(to_row(found))
        return rows

    async def _stream(self, arguments: Arguments) -> Iterable[Row]:
        """A stream; no row when it is not in the tier, or there is none."""
        name, tier = as_sent(arguments.get("stream", "")), self._broker.tier
        self._context.rights.require(Right.READ, name)
        self._context.host.find(name)
        found = tier.stream(self._context.host.name, name) if tier is not None else None
        return () if found is None else (to_row(found),)

    async def _verify(self, arguments: Arguments) -> Iterable[Row]:
        self._context.rights.require_administrator()
        name = as_sent(arguments.get("stream", ""))
        self._context.host.find(name)
        with store_errors_refuse():
            report = await required(self._broker.tier).verify(self._context.host.name, name)
        return [to_row(report), *map(to_row, report.faults)]

    async def _collect(self, arguments: Arguments) -> Iterable[Row]:
        self._context.rights.require_administrator()
        is_dry = arguments.get("dry_run", "true") != "false"
        with store_errors_refuse():
            report = await required(self._broker.tier).collect(dry_run=is_dry)
        return [to_row(report), *map(to_row, report.orphans)]

    async def _upload(self, arguments: Arguments) -> Iterable[Row]:
        """Upload the streams `stream.0` and so on, or all, and wait for it."""
        self._context.rights.require_administrator()
        names = [as_sent(text) for name, text in arguments.items() if name.startswith(_NAMED)]
        text = arguments.get("seconds", str(UPLOAD_SECONDS))
        seconds = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
        check_seconds(seconds)
        host = self._context.host.name
        with store_errors_refuse():
            report = await required(self._broker.tier).upload(host, names, seconds)
        return chain([to_row(report)], map(to_row, report.streams))  # there may be thousands
