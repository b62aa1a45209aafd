"""pika, over TLS.

python examples/tls_pika.py 5671 ca.pem
"""

import ssl
import sys

import pika


def main(port: int, authority: str) -> None:
    tls = pika.SSLOptions(ssl.create_default_context(cafile=authority), "localhost")
    login = pika.PlainCredentials("guest", "guest")
    where = pika.ConnectionParameters("localhost", port, credentials=login, ssl_options=tls)
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.queue_declare("over-tls", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", "over-tls", b"hello")
    print("stored")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
