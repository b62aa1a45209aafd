"""Every setting of the server: name, unit, default, and why.

Values come from a TOML file, then from environment variables STREAMD_<NAME>, then from flags; the
later wins. `describe` gives the settings to the command line, so that help and file agree.

The memory that peers can make the server hold is bounded; tests/support/memory.py adds it up.
"""

import dataclasses
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

RECEIVE_BYTES = 1 << 20  # one read from a socket, so one chunk; one buffer for all connections
OUTBOX_BYTES = 1 << 20  # answers queued for a peer that does not read them
QUEUE_BYTES = 4 << 20  # messages queued for one stream; a turn of the writer takes them all
PUBLICATION_BYTES = 512  # counted for each frame of them besides its own: tiny frames add up
LOGIN_SECONDS = 10  # for each step before a connection is open
REFUSAL_SECONDS = 3  # how long a wrong password waits for its answer: slows down guessing
CLOSE_SECONDS = 10  # how long a peer has to answer our Close
DRAIN_SECONDS = 5  # how long connections have to end when the server stops
HAND_OVER_SECONDS = 30  # and for uploading what another node lacks that takes over
ARRIVED_SECONDS = 3  # of that, for storing what has arrived
FAREWELL_SECONDS = 2  # and for telling the peer
AGE = re.compile(r"([0-9]{1,12})([YMDhms])")  # of a stream's messages, as in 7D
FLUSH_BYTES = 8 << 20  # of one stream that wait no longer for `flush_ms`
FILTER_INDEX_BYTES = 256 << 20  # filter indexes of sealed segments that are in memory
FULL_DISK_SECONDS = 1  # between attempts to write while the disk is full
RETENTION_SECONDS = 60  # between checks of the age of idle streams
UPDATE_SECONDS = 60  # how long a client has to answer a ConsumerUpdate
CHECK_SECONDS = 5  # between checks whether it has
MAX_IDS = 256  # publishers, and subscriptions, of one connection: ids are one byte
PROPERTIES_BYTES = 512 << 10  # of all subscriptions or consumers of one connection
MAX_ASKED = 1_000  # filter values of one of them
MAX_NAME_BYTES = 1_024  # of a stream
METRICS_PORT = 15_692  # RabbitMQ's
MAX_METRICS_CONNECTIONS = 32


ALL_HOSTS = "*"
_HOST = re.compile(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATH_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")

Value: TypeAlias = int | bool | str | tuple[str, ...] | None


class ConfigError(Exception):
    """A setting cannot be used; says which, what was found and what is expected."""


def _setting(default: Value, text: str) -> Any:  # noqa: ANN401 - as dataclasses.field is typed
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The server's settings."""

    data: str = _setting("data", "folder for streams and catalog; created when missing")
    host: str = _setting(
        "127.0.0.1",
        "address, or name of addresses, to listen on; only this machine can connect to the "
        "default, any to 0.0.0.0 (IPv4) or :: (both)",
    )
    stream_port: int | None = _setting(5552, "port of the stream protocol")
    tls_port: int | None = _setting(None, "port of the stream protocol inside TLS, usually 5551")
    tls_certificate: str = _setting("", "file with the server's certificate, for TLS")
    tls_key: str = _setting("", "file with the certificate's key, when it is not in the same file")
    tls_ca: str = _setting(
        "", "file with authorities; with a certificate of theirs, clients may log in with EXTERNAL"
    )
    amqp_port: int | None = _setting(5672, "port of AMQP 0-9-1")
    amqp_tls_port: int | None = _setting(None, "port of AMQP 0-9-1 inside TLS, usually 5671")
    amqp_processes: int = _setting(
        0,
        "processes that have the AMQP connections and put their messages into the form of streams "
        "and back, for machines with several cores; with 0, the process of the streams does",
    )
    default_queue_type: str = _setting(
        "classic", "type of AMQP queues that name none: stream, or classic, which is refused"
    )
    http_port: int | None = _setting(15672, "port of the HTTP management API and the web console")
    http_tls_port: int | None = _setting(None, "port of the HTTP API inside TLS, usually 15671")
    http_allowed_host: tuple[str, ...] = _setting(
        (),
        "name by which the HTTP API and the metrics may be asked for, besides localhost, names of "
        "this machine, host and advertised_host, and addresses; * allows all",
    )
    metrics_port: int | None = _setting(
        METRICS_PORT,
        "port of the metrics for Prometheus; while somebody else has the default, the server runs "
        "without",
    )
    metrics_tls_port: int | None = _setting(None, "port of the metrics inside TLS, usually 15691")
    metrics_login: str = _setting(
        "off",
        "whether metrics are for users with the tag monitoring or administrator: on, or off for "
        "everybody who reaches the port",
    )
    http_path_prefix: str = _setting(
        "", "what all paths of the HTTP API begin with, as in /streamd"
    )
    advertised_host: str = _setting("localhost", "host that clients are told to connect to")
    advertised_port: int | None = _setting(
        None, "port that clients are told to connect to, when it is not stream_port"
    )
    advertised_tls_port: int | None = _setting(
        None, "port that clients inside TLS are told to connect to, when it is not tls_port"
    )
    frame_max: int = _setting(1 << 20, "largest frame, in bytes")
    heartbeat: int = _setting(60, "seconds between heartbeats that the server proposes to clients")
    max_connections: int = _setting(
        10_000,
        "open connections of stream and AMQP clients; at the limit, the oldest that has not "
        "logged in is closed",
    )
    max_http_connections: int = _setting(
        200,
        "open connections to the HTTP API; at the limit, the one that has waited longest for a "
        "login or a request is closed",
    )
    max_streams: int = _setting(10_000, "streams in all virtual hosts; more cannot be created")
    default_max_length_bytes: int = _setting(
        0,
        "retention of streams that declare no max-length-bytes: their oldest segments go when they "
        "are larger; 0 for none",
    )
    default_max_age: str = _setting(
        "", "the same for streams that declare no max-age, as 30D; empty for none"
    )
    min_disk_free_bytes: int = _setting(
        0,
        "bytes of the disk that are to stay free: while there are fewer, publishers wait, and "
        "everybody else goes on; 0 for none",
    )
    flush: str = _setting(
        "interval",
        "when messages are flushed to disk: before each confirm (always), at an interval "
        "(interval), or when the system does so by itself (os)",
    )
    flush_ms: int = _setting(
        1_000, "how long a message may wait for its flush at an interval, in ms"
    )
    user: str = _setting("guest", "the first user, created when the data folder is new")
    password: str = _setting("guest", "password of the first user")
    anonymous_user: str = _setting(
        "", "user for clients that log in as ANONYMOUS, which is refused without it"
    )
    tier: str = _setting(
        "",
        "object store that full segments of streams are uploaded to: s3://BUCKET/PREFIX, gs://, "
        "az://, or file:///FOLDER; credentials are those of the usual environment variables, as "
        "AWS_ACCESS_KEY_ID; without it, streams are on this machine alone",
    )
    tier_endpoint: str = _setting(
        "", "URL of the object store, when it is not that of the provider, as http://minio:9000"
    )
    tier_cache_bytes: int = _setting(
        10 << 30,
        "what was read from the tier is kept on the disk up to this size, in bytes, and up to a "
        "tenth of the disk",
    )
    tier_roll_seconds: int = _setting(
        3_600,
        "age at which a segment with messages that are not in the tier is taken for full, and "
        "uploaded, in seconds",
    )
    tier_delete_delay_seconds: int = _setting(
        600,
        "how long what is not needed any more stays, on the disk and in the tier, in seconds",
    )
    confirm: str = _setting(
        "local",
        "when messages of streams that do not say so themselves are confirmed: when this machine "
        "has them (local), or the tier (store)",
    )
    confirm_interval_ms: int = _setting(
        200,
        "streams that are confirmed by the tier write to it at most so often, in ms; a request "
        "each time, if there is anything",
    )
    read_only: bool = _setting(
        default=False,
        text="serve the history of all streams from the tier, which another server writes; "
        "publishing is refused",
    )
    node: str = _setting(
        "",
        "name of this server in a cluster: of all servers with the same tier and a name each, one "
        "leads, and the others only read and take over when it is gone; needs tier",
    )
    takeover_seconds: int = _setting(
        10,
        "how long a standby sees no sign of life of the leader before it takes over, in seconds",
    )
    log_format: str = _setting("text", "lines of the log: text, or json for one object in a line")
    # Of one start, so no setting: the next one would find a folder that is not empty.
    restore: bool = False
    takeover_local_seconds: int = _setting(
        60,
        "how much longer it waits while there are streams that do not confirm through the store, "
        "in seconds: a leader that starts again in that time loses nothing of them, and a takeover "
        "what it had not uploaded",
    )
    leader_locator: str = _setting(
        "client-local",
        "which node leads a stream that does not say so itself with the argument "
        "queue-leader-locator, in a cluster whose messages are confirmed by the tier: client-local "
        "for the one that leads the cluster, balanced to spread streams over all nodes",
    )
    nodes: int = _setting(
        1,
        "nodes of a cluster on this machine, to use its cores: each is a server of its own, with a "
        "folder in data and a stream port, the next one each; streams are confirmed by the tier, "
        "by default a folder in data, and spread over the nodes",
    )
    is_standby: bool = False  # set by the node itself, which reads only as long as it is one

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}, expected {low} to {high}")
        for name in TLS_PORTS:
            if getattr(self, name) is not None and not self.tls_certificate:
                raise ConfigError(f"{name} needs tls_certificate, the file with the certificate")
        for host in self.http_allowed_host:
            if not _HOST.fullmatch(host):
                expected = f"a name without a port, or {ALL_HOSTS}"
                raise ConfigError(f"http_allowed_host is {host!r}, expected {expected}")
        if not _PATH_PREFIX.fullmatch(self.http_path_prefix):
            found = self.http_path_prefix
            raise ConfigError(f"http_path_prefix is {found!r}, expected a path such as /streamd")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name} is {value!r}, expected {' or '.join(choices)}")

        _check_kept(self)
        _check_node(self)

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return f"Config({shown | {'password': '<secret>'}})"


_RANGES = (
    ("stream_port", 0, 65_535),
    ("tls_port", 0, 65_535),
    ("amqp_port", 0, 65_535),
    ("amqp_tls_port", 0, 65_535),
    ("http_port", 0, 65_535),
    ("http_tls_port", 0, 65_535),
    ("metrics_port", 0, 65_535),
    ("metrics_tls_port", 0, 65_535),
    ("advertised_port", 1, 65_535),
    ("advertised_tls_port", 1, 65_535),
    ("frame_max", 8_192, 1 << 30),
    ("heartbeat", 1, 86_400),
    ("max_connections", 1, 1 << 20),
    ("max_http_connections", 1, 1 << 20),
    ("max_streams", 0, 1 << 20),
    ("amqp_processes", 0, 64),
    ("flush_ms", 10, 3_600_000),
    ("default_max_length_bytes", 0, 1 << 62),
    ("min_disk_free_bytes", 0, 1 << 62),
    ("tier_cache_bytes", 64 << 20, 1 << 50),
    ("tier_roll_seconds", 1, 30 * 86_400),
    ("confirm_interval_ms", 1, 60_000),
    ("tier_delete_delay_seconds", 0, 30 * 86_400),
    ("takeover_seconds", 2, 3_600),
    ("takeover_local_seconds", 0, 86_400),
    ("nodes", 1, 64),
)
TLS_PORTS = ("tls_port", "amqp_tls_port", "http_tls_port", "metrics_tls_port")
PORTS = frozenset({"stream_port", "amqp_port", "http_port", "metrics_port", *TLS_PORTS})
AMQP_PORTS = ("amqp_port", "amqp_tls_port")
METRICS_PORTS = ("metrics_port", "metrics_tls_port")
HTTP_PORTS = ("http_port", "http_tls_port", *METRICS_PORTS)
LOG_FORMATS = ("text", "json")
_CHOICES = {
    "default_queue_type": ("stream", "classic"),
    "flush": ("os", "interval", "always"),
    "log_format": LOG_FORMATS,
    "metrics_login": ("off", "on"),
    "confirm": ("local", "store"),
    "leader_locator": ("client-local", "balanced"),
}
OFF = "off"


def _check_kept(config: Config) -> None:
    """Raise ConfigError for settings of the tier, or of retention, that do not fit."""
    if config.default_max_age and not AGE.fullmatch(config.default_max_age):
        expected = "a number and one of the units Y, M, D, h, m, s, as in 7D"
        raise ConfigError(f"default_max_age is {config.default_max_age!r}, expected {expected}")
    if config.tier:
        # Only now: segments takes longer to load than all of the settings.
        from segments.store.address import parse_address  # noqa: PLC0415
        from segments.store.object_store import DeniedError  # noqa: PLC0415

        try:
            parse_address(config.tier, config.tier_endpoint)
        except DeniedError as error:
            raise ConfigError(str(error)) from error
    for name in ("read_only", "restore"):
        if getattr(config, name) and not config.tier:
            raise ConfigError(f"{name} needs tier, the object store that streams are read from")
    if config.confirm == "store" and not config.tier:
        raise ConfigError("confirm is store, and needs tier, the object store that is meant")
    if config.tier_endpoint and not config.tier:
        raise ConfigError("tier_endpoint needs tier, which names the bucket, as s3://BUCKET/PREFIX")
    if config.read_only and config.restore:
        raise ConfigError("restore is for a server that publishes, and read_only is set; use one")


def _check_node(config: Config) -> None:
    """Raise ConfigError for settings of a node that do not fit."""
    if not config.node:
        return
    if not _NODE.fullmatch(config.node):
        expected = "letters, digits, and . _ - inside, 64 at most"
        raise ConfigError(f"node is {config.node!r}, expected {expected}")
    if not config.tier:
        raise ConfigError("node needs tier, the object store that all nodes of a cluster share")
    if not config.advertised_host:
        raise ConfigError("node needs advertised_host, where clients reach this server")
    if config.read_only and not config.is_standby:
        raise ConfigError("node is for servers that may lead, and read_only is set; use one")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as the command line shows it."""

    name: str
    default: Value
    help: str
    is_number: bool
    is_list: bool
    is_flag: bool

    @property
    def expected(self) -> str:
        """The values it may have, as "10 to 3,600,000"."""
        if self.name in _CHOICES:
            return " or ".join(_CHOICES[self.name])
        if self.is_flag:
            return "true or false"
        found = next(
            (f"{low:,} to {high:,}" for name, low, high in _RANGES if name == self.name), ""
        )
        if self.name in PORTS:
            return f"a port, {OFF}, or 0 for a free one"
        return found or ("a list of strings" if self.is_list else "a string")


def describe() -> Iterator[Setting]:
    """All settings, in order."""
    for item in dataclasses.fields(Config):
        if "help" not in item.metadata:
            continue
        default = cast("Value", item.default)
        is_list = isinstance(default, tuple)
        is_flag = item.type is bool
        is_number = item.type is not str and not is_list and not is_flag
        yield Setting(item.name, default, item.metadata["help"], is_number, is_list, is_flag)


def as_toml() -> str:
    """A settings file in which every setting stands as a comment, with its default and meaning."""
    lines = [
        "# Settings of streamd: remove the # before those that are to differ from the default."
    ]
    for setting in describe():
        text = f"{setting.help[0].upper()}{setting.help[1:]}."
        lines += ["", *(f"## {line}" for line in textwrap.wrap(text, 90))]
        default = OFF if setting.default is None and setting.name in PORTS else setting.default
        shown = "" if default is None else json.dumps(default)  # TOML has no word for "not set"
        lines.append(f"# {setting.name} = {shown}".rstrip())
    return "\n".join(lines) + "\n"


def load(
    file: Path | None, environment: Mapping[str, str] | None = None, /, **flags: Value
) -> Config:
    """The settings from a file, the environment and flags (None, or an empty list: not given).

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown or out of range.
    """
    values: dict[str, Value] = {}
    environment = os.environ if environment is None else environment
    settings = {setting.name: setting for setting in describe()}
    if file is not None:
        values |= _read_file(file, settings)
    for name, setting in settings.items():
        text = environment.get(f"STREAMD_{name.upper()}")
        if text is not None:
            values[name] = _from_text(setting, text, f"STREAMD_{name.upper()}")
    values |= {name: value for name, value in flags.items() if value not in (None, ())}
    checked: dict[str, Any] = {name: _port(name, value) for name, value in values.items()}
    return Config(**checked)


def _read_file(file: Path, settings: Mapping[str, Setting]) -> dict[str, Value]:
    try:
        found = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    for name, value in found.items():
        if name not in settings:
            known = ", ".join(settings)
            raise ConfigError(f"{file}: {name} is not a setting; there are {known}")
        if not _fits(settings[name], value):
            raise ConfigError(f"{file}: {name} is {value!r}, expected {_kind(settings[name])}")
    return {n: tuple(v) if settings[n].is_list else v for n, v in found.items()}


def _fits(setting: Setting, value: object) -> bool:
    if setting.is_list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if setting.is_flag:
        return isinstance(value, bool)
    wanted = int if setting.is_number else str
    is_fit = isinstance(value, wanted) and not isinstance(value, bool)
    return is_fit or (setting.name in PORTS and value == OFF)


def _from_text(setting: Setting, text: str, source: str) -> Value:
    if setting.is_list:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if setting.is_flag and text in ("true", "false"):
        return text == "true"
    if setting.is_flag:
        raise ConfigError(f"{source} is {text!r}, expected {_kind(setting)}")
    if not setting.is_number or (setting.name in PORTS and text == OFF):
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{source} is {text!r}, expected {_kind(setting)}") from None


def _kind(setting: Setting) -> str:
    if setting.name in PORTS:
        return f"a port or {OFF}"
    if setting.is_list:
        return "a list of strings"
    if setting.is_flag:
        return "true or false"
    return "a number" if setting.is_number else "a string"


def _port(name: str, value: Value) -> Value:
    return None if name in PORTS and value == OFF else value
