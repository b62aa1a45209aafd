"""RabbitMQ's client for Python, rstream, over TLS.

python examples/tls_rstream.py 5551 ca.pem
"""

import asyncio
import ssl
import sys

from rstream import AMQPMessage, Producer

port, authority = int(sys.argv[1]), sys.argv[2]


async def main() -> None:
    tls = ssl.create_default_context(cafile=authority)
    async with Producer(
        host="localhost", port=port, username="guest", password="guest", ssl_context=tls
    ) as producer:
        await producer.create_stream("over-tls", exists_ok=True)
        await producer.send_wait("over-tls", AMQPMessage(body=b"hello"))
    print("stored")


if __name__ == "__main__":
    asyncio.run(main())
