"""AMQP 1.0 clients meet the same server whether a door is between them or not."""

from tests.connections.amqp091.conftest import server

__all__ = ["server"]
