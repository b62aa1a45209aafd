"""streamd: a stream server that RabbitMQ stream clients connect to."""

__version__ = "0.1.0"
