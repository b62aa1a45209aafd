"""A program of its own: publishes numbers with rstream until it is killed, and says what it sent.

    python -m tests.support.rstream_publisher PORT STREAM FIRST

Prints a line for each batch sent ("sent N": all numbers below N) and each confirm ("confirmed N").
"""

import asyncio
import sys

from rstream import AMQPMessage, ConfirmationStatus, Producer

_BATCH = 100


async def main(port: int, stream: str, first: int) -> None:
    producer = Producer("localhost", port, username="guest", password="guest")
    await producer.start()
    await producer.create_stream(stream, exists_ok=True)

    def on_confirm(status: ConfirmationStatus) -> None:
        if status.is_confirmed:
            print("confirmed", status.message_id - 1, flush=True)

    while True:
        batch = []
        for number in range(first, first + _BATCH):
            message = AMQPMessage(body=b"%d" % number)
            message.publishing_id = number + 1
            batch.append(message)
        first += _BATCH
        print("sent", first, flush=True)
        await producer.send_batch(
            stream, batch, publisher_name="app", on_publish_confirm=on_confirm
        )
        await asyncio.sleep(0)


asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
