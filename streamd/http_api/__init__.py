"""RabbitMQ's management API over HTTP, for streams: the paths that clients and people use."""

from streamd.http_api.app import make_app
from streamd.http_api.service import Service
from streamd.http_api.serving import Listener, listen

__all__ = ["Listener", "Service", "listen", "make_app"]
