"""The version of streamd, and what clients can take it for."""

__version__ = "0.1.0"
PRODUCT, COMPATIBLE_VERSION = "RabbitMQ", "4.3.0"
