"""AMQP 0-9-1 as pika speaks it, in threads."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pika
import trio
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.churn.doors import ARGUMENTS, Broken, Door, Network
from tests.churn.history import CONFLICT, MISSING, OK, Outcome

_QUIET_SECONDS = 0.3


class PikaDoor(Door):
    """A client that somebody else wrote. It does not drop its connection in a request."""

    name = "pika"

    def __init__(self, network: Network, uri: str) -> None:
        super().__init__(network)
        self._uri = uri
        self._connection: Any = None
        self._channel: Any = None
        self.calls = {
            "declare": self._declare,
            "remove": self._remove,
            "find": self._find,
            "declare_exchange": self._declare_exchange,
            "remove_exchange": self._remove_exchange,
            "remove_unused": self._remove_unused,
            "bind": self._bind,
            "unbind": self._unbind,
            "remove_stream": self._remove_stream,
        }

    async def open(self) -> None:
        try:
            await trio.to_thread.run_sync(self._open)
        except pika.exceptions.AMQPError as error:
            raise trio.BrokenResourceError(repr(error)) from error

    def _open(self) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(self._uri))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    async def close(self) -> None:
        await trio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            with suppress(pika.exceptions.AMQPError):
                self._connection.close()

    async def _outcome(
        self, work: Callable[[], object], refusals: Mapping[int, Outcome]
    ) -> Outcome:
        try:
            await trio.to_thread.run_sync(work)
        except ChannelClosedByBroker as error:
            await trio.to_thread.run_sync(self._open_channel)
            if error.reply_code not in refusals:
                raise Broken(f"the channel was closed: {error}") from error
            return refusals[error.reply_code]
        except pika.exceptions.AMQPError as error:
            raise Broken(f"the connection was closed: {error!r}") from error
        return OK

    def _open_channel(self) -> None:
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    async def _declare(self, name: str, arguments: str) -> Outcome:
        table = {f"x-{key}": value for key, value in ARGUMENTS[arguments].items()}
        table["x-queue-type"] = "stream"
        work = partial(self._channel.queue_declare, name, durable=True, arguments=table)
        return await self._outcome(work, {406: CONFLICT})

    async def _remove(self, name: str) -> Outcome:
        return await self._outcome(partial(self._channel.queue_delete, name), {})

    async def _find(self, name: str) -> Outcome:
        work = partial(self._channel.queue_declare, name, passive=True)
        return await self._outcome(work, {404: MISSING})

    async def _declare_exchange(self, name: str, kind: str) -> Outcome:
        work = partial(self._channel.exchange_declare, name, kind, durable=True)
        return await self._outcome(work, {406: CONFLICT})

    async def _remove_exchange(self, name: str) -> Outcome:
        return await self._outcome(partial(self._channel.exchange_delete, name), {})

    async def _remove_unused(self, name: str) -> Outcome:
        work = partial(self._channel.exchange_delete, name, if_unused=True)
        return await self._outcome(work, {406: CONFLICT})

    async def _bind(self, name: str, key: str, stream: str) -> Outcome:
        work = partial(self._channel.queue_bind, stream, name, key)
        return await self._outcome(work, {404: MISSING})

    async def _unbind(self, name: str, key: str, stream: str) -> Outcome:
        work = partial(self._channel.queue_unbind, stream, name, key)
        return await self._outcome(work, {404: MISSING})

    async def _remove_stream(self, _name: str, stream: str) -> Outcome:
        return await self._remove(stream)

    # -- messages

    async def publish(self, name: str, values: list[bytes | None], bodies: list[bytes]) -> None:
        def work() -> None:
            for value, body in zip(values, bodies, strict=True):
                word = (value or b"").decode()
                headers = {"x-stream-filter-value": word, "kind": word} if word else {}
                properties = pika.BasicProperties(headers=headers)
                try:
                    self._channel.basic_publish("", name, body, properties, mandatory=True)
                except (UnroutableError, NackError):
                    return  # the stream is gone

        await self._outcome(work, {})

    async def consume(self, name: str, value: str) -> list[bytes]:
        found: list[bytes] = []
        table = {"x-stream-offset": "first"} | (
            {"x-stream-sql": f"kind = '{value}'"} if value else {}
        )

        def work() -> None:
            self._channel.basic_qos(prefetch_count=50)
            for method, _, body in self._channel.consume(
                name, arguments=table, inactivity_timeout=_QUIET_SECONDS
            ):
                if method is None:
                    break
                found.append(body)
                self._channel.basic_ack(method.delivery_tag)
                if len(found) >= 200:
                    break
            self._channel.cancel()

        await self._outcome(work, {404: MISSING})
        return found
