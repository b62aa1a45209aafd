"""Tests with unittest, against a real server.

python -m unittest examples/test_with_unittest.py
"""

import asyncio
import tempfile
import unittest
from contextlib import ExitStack
from pathlib import Path

from streamd import connect
from streamd.testing import StreamdServer, run_server


class TestOrders(unittest.TestCase):
    server: StreamdServer

    @classmethod
    def setUpClass(cls) -> None:
        stack = ExitStack()
        cls.addClassCleanup(stack.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cls.server = stack.enter_context(run_server(folder, max_streams=100))

    def test_an_order_is_stored(self) -> None:
        async def publish() -> list[bytes]:
            async with connect(self.server.uri) as client:
                await client.create("orders")
                async with client.producer("orders") as producer:
                    await producer.send_all([b"order 1"])
                async with client.consumer("orders", offset="first", until_end=True) as messages:
                    return [message.body async for message in messages]

        self.assertEqual(asyncio.run(publish()), [b"order 1"])


if __name__ == "__main__":
    unittest.main()
