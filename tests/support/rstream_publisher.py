"""A program of its own: publishes numbers with rstream until it is killed, and says what it sent.

    python -m tests.support.rstream_publisher PORT STREAM FIRST [PUBLISHER] [PAUSE]

Prints a line for each batch sent ("sent N": all numbers below N) and each confirm ("confirmed N").
Without a PUBLISHER it has the name app, and with an empty one none. It pauses for so many seconds
after each batch.
"""

import argparse
import asyncio

from rstream import AMQPMessage, ConfirmationStatus, Producer

_BATCH = 100


async def main(port: int, stream: str, first: int, publisher: str, pause: float) -> None:
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
            stream, batch, publisher_name=publisher or None, on_publish_confirm=on_confirm
        )
        await asyncio.sleep(pause)


parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("stream")
parser.add_argument("first", type=int)
parser.add_argument("publisher", nargs="?", default="app")
parser.add_argument("pause", nargs="?", type=float, default=0.0)
given = parser.parse_args()
asyncio.run(main(given.port, given.stream, given.first, given.publisher, given.pause))
