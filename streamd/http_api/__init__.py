"""RabbitMQ's management API over HTTP, for streams: the paths that clients and people use."""

from streamd.http_api.app import make_app
from streamd.http_api.browsers import known_hosts, machine_names
from streamd.http_api.caller import BasicAuthentication
from streamd.http_api.metrics import make_metrics_app
from streamd.http_api.service import Service
from streamd.http_api.serving import Listener, Server
from streamd.http_api.unsent import Unsent

__all__ = [
    "BasicAuthentication",
    "Listener",
    "Server",
    "Service",
    "Unsent",
    "known_hosts",
    "machine_names",
    "make_app",
    "make_metrics_app",
]
