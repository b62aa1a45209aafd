"""All metrics, from the collectors in streamd/metrics."""

from collections.abc import Iterable

from generated.text import code, inline
from streamd.metrics.families import Family
from streamd.metrics.scrape import SCRAPE_SECONDS
from streamd.metrics.server_metrics import CLUSTER, IDENTITY, OWN, RABBITMQ
from streamd.metrics.stream_metrics import (
    BY_NAME,
    COLUMNS,
    DISK_ALARM,
    KNOWN,
    MATCHES,
    QUEUE_INFO,
    WRITTEN,
    Column,
)

_HEAD = "| Metric | Kind | Labels | Family | Means |\n|---|---|---|---|---|"


def markdown() -> str:
    """Tables of all metrics: of the server, of streams, of consumers; ours and RabbitMQ's."""
    ours = [column for column in COLUMNS if column.family.name.startswith("streamd_")]
    theirs = [column for column in COLUMNS if column not in ours]
    of_names = [*(family for family, _ in BY_NAME), MATCHES]
    parts = [
        "## Ours: the server\n",
        _table([*(metric.family for metric in OWN), SCRAPE_SECONDS, KNOWN]),
        "\n## Ours: streams\n",
        _columns(ours),
        "\n## Ours: consumers by name, and standing selectors\n",
        _table(of_names),
        "\n## RabbitMQ's: the server\n",
        _table([metric.family for metric in (*IDENTITY, *RABBITMQ)] + [WRITTEN, DISK_ALARM]),
        "\n## RabbitMQ's: streams\n",
        _columns(theirs, QUEUE_INFO),
        "\n## RabbitMQ's: virtual hosts and exchanges\n",
        _table([metric.family for metric in CLUSTER]),
    ]
    return "\n".join(parts)


def _table(families: Iterable[Family]) -> str:
    return "\n".join([_HEAD, *map(_row, families)])


def _columns(columns: Iterable[Column], *more: Family) -> str:
    rows = [_row(column.family, _total(column)) for column in columns]
    return "\n".join([_HEAD, *rows, *map(_row, more)])


def _row(family: Family, total: str = "") -> str:
    labels = ", ".join(map(code, family.labels))
    groups = ", ".join(map(code, family.groups))
    text = inline(family.help).replace("|", "\\|")
    return f"| {code(family.name)} | {family.kind} | {labels} | {groups} | {text}{total} |"


def _total(column: Column) -> str:
    if not column.has_total:
        return ". Not in `/metrics`"
    if column.total is not None:
        return ". In `/metrics` with streams that are deleted"
    return ". In `/metrics` the highest" if column.is_highest else ""
