"""`streamd tune`: filter size and chunk limit from a stream's own history, with Spark."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from segments import filter_demand
from segments.words import size
from streamd.cli.common import Number, json_option, run_client, uri_option
from streamd.cli.terminal import (
    Failed,
    Misused,
    note,
    notes,
    show,
    show_paragraphs,
    shown,
    write_json,
)
from streamd.config import Config
from streamd.operations.names import stream_folder

if TYPE_CHECKING:
    from clients import Client
    from segments.spark.recommend import Candidate
    from segments.spark.tuning import Tuning

_REPORT = "tuning"
_RECORDED = "recorded"


@click.command()
@click.argument("stream", metavar="NAME_OR_PATH")
@click.option(
    "--data",
    envvar="STREAMD_DATA",
    default=Config().data,
    show_default=True,
    metavar="DIR",
    help="The server's data folder, in which NAME is looked up.",
)
@click.option("--vhost", help="Virtual host of NAME.  [default: that of --uri]")
@click.option(
    "--report",
    "report_folder",
    metavar="DIR",
    help="Where report.json, report.png and the tables go.  [default: tuning/NAME]",
)
@click.option(
    "--workload",
    metavar="FILE|recorded",
    help="What consumers ask for: a JSON object of filter values and how often for each, or what "
    "the server has recorded.  [default: each value as often as it occurs]",
)
@click.option(
    "--filter-property",
    metavar="P",
    help="The property to take filter values from where the chunks list none.",
)
@click.option("--keep-limit", is_flag=True, help="Leave the number of messages per chunk alone.")
@click.option(
    "--store-price",
    type=Number(),
    default=1.0,
    show_default=True,
    help="Cost of a stored byte of filters and headers.",
)
@click.option(
    "--deliver-price",
    type=Number(),
    default=1.0,
    show_default=True,
    help="Cost of a byte that is delivered needlessly.",
)
@click.option(
    "--chunk-price",
    type=Number(),
    default=1000.0,
    show_default=True,
    help="Cost of the work on one more chunk, in stored bytes.",
)
@click.option("--apply", "to_apply", is_flag=True, help="Apply the result to the running server.")
@click.option(
    "--master",
    default="",
    metavar="URL",
    help="The cluster that does the work, such as spark://HOST:PORT; its workers need this "
    "package, too.  [default: this machine]",
)
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of Spark; may be repeated.",
)
@click.option(
    "--tier-endpoint",
    "endpoint",
    envvar="STREAMD_TIER_ENDPOINT",
    default="",
    metavar="URL",
    help="URL of the object store, when it is not that of the provider, as http://minio:9000.",
)
@json_option
@uri_option
def tune(  # noqa: PLR0913, PLR0917 - options
    stream: str,
    data: str,
    vhost: str | None,
    report_folder: str | None,
    workload: str | None,
    filter_property: str | None,
    store_price: float,
    deliver_price: float,
    chunk_price: float,
    master: str,
    settings: tuple[str, ...],
    endpoint: str,
    uri: str,
    *,
    keep_limit: bool,
    to_apply: bool,
    as_json: bool,
) -> None:
    """Find the filter size and chunk limit that fit the history of a stream best.

    NAME_OR_PATH is a stream of the server's data folder, a stream's folder, or a stream in an
    object store: s3://BUCKET/PREFIX/VHOST/STREAM, with names escaped as in URLs. Nothing is asked
    of a server; only --apply needs one. The filter values that the chunks have held are replayed
    with other settings. Needs the extra "spark": in a checkout of streamd, pip install '.[spark]'.

    \b
    Examples:
      streamd tune flights --data ./data
      streamd tune flights --workload recorded --apply
      streamd tune data/streams/%2F/flights --workload wanted.json --keep-limit
      streamd tune s3://bucket/streams/%2F/flights --master spark://spark-1:7077
    """
    folder, uri = _place(stream, data, vhost, uri)
    tuning = run_tuning(
        folder,
        workload=None if workload is None else _read_workload(workload, folder),
        prices=(store_price, deliver_price, chunk_price),
        filter_property=filter_property,
        keep_limit=keep_limit,
        endpoint=endpoint,
        master=master,
        settings=_settings(settings),
    )
    from segments.spark.report import as_json as plain, write_report  # noqa: PLC0415 - an extra

    if as_json:
        write_json(plain(tuning))
    else:
        print_tuning(tuning)
    target = report_folder or f"{_REPORT}/{Path(folder).name}"
    try:
        write_report(tuning, target)
    except OSError as error:
        raise Failed(f"the report cannot be written to {target}: {error.strerror}") from error
    note(f"report in {target}; look at {target}/report.png first")
    if to_apply:
        apply_tuning(tuning, tuning.stream, uri)


def _settings(given: Sequence[str]) -> dict[str, str]:
    """Settings of Spark; what is wrong with one is said without it, as it may be a secret."""
    parts = [setting.partition("=") for setting in given]
    for name, sign, _ in parts:
        if not (name.startswith("spark.") and sign):
            raise Misused("--conf expects a setting of Spark, such as spark.executor.memory=4g")
    return {name: value for name, _, value in parts}


def _place(stream: str, data: str, vhost: str | None, uri: str) -> tuple[str, str]:
    """Where the stream is, and the server's address with the virtual host of that stream."""
    from clients.uri import in_virtual_host, parse_uri  # noqa: PLC0415 - not for the help

    is_path = Path(stream).is_dir() or "://" in stream
    if is_path and vhost is not None:
        raise Misused(f"--vhost needs the NAME of a stream, and {stream} is a path")
    try:
        host = (_host_in(stream) if is_path else vhost) or parse_uri(uri).virtual_host
        uri = in_virtual_host(uri, host)
    except ValueError as error:
        raise Misused(f"{stream} is not what --uri is about: {error}") from error
    return stream if is_path else _folder(stream, data, host), uri


def _host_in(path: str) -> str:
    """The virtual host that a path of a stream names; empty for a folder elsewhere."""
    parts = Path(path).resolve().parts if "://" not in path else path.rstrip("/").split("/")
    is_named = "://" in path or parts[-3:-2] == ("streams",)
    return unquote(parts[-2]) if is_named else ""


def _folder(stream: str, data: str, vhost: str) -> str:
    try:
        folder = stream_folder(data, vhost, stream)
    except UnicodeEncodeError as error:
        raise Misused(f"{error.object!r} is not UTF-8, as names of streams are") from error
    if not Path(folder).is_dir():
        raise Failed(
            f"there is no folder {stream}, and no stream {stream} in the data folder {data} that "
            "was ever used; give the data folder with --data"
        )
    return folder


def _read_workload(given: str, folder: str) -> dict[str, float]:
    if given == _RECORDED:
        return _read_recorded(folder)
    try:
        found = json.loads(Path(given).read_text())
    except FileNotFoundError as error:
        raise Failed(
            f"there is no file {given} with a workload; --workload recorded takes the one that the "
            "server has recorded"
        ) from error
    except OSError as error:
        raise Failed(f"the workload in {given} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Misused(f"the workload in {given} cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(
        isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < math.inf
        for weight in found.values()
    ):
        raise Misused(
            f'the workload in {given} is expected to be a JSON object like {{"HA": 10, "UA": 1}}'
        )
    return {str(value): float(weight) for value, weight in found.items()}


def _read_recorded(folder: str) -> dict[str, float]:
    if "://" in folder:
        raise Misused(
            "what the server has recorded is not in the object store; give a file with --workload, "
            f"such as {filter_demand.NAME} in the stream's folder on the server"
        )
    path = Path(folder, filter_demand.NAME)
    try:
        counts = filter_demand.parse(path.read_bytes())
    except FileNotFoundError:
        counts = Counter()
    except (OSError, ValueError) as error:
        raise Failed(f"the recorded workload in {path} cannot be read: {error}") from error
    if not counts:
        raise Failed(
            f"the server has not recorded any subscription with a filter in {folder} yet; it "
            "records them once a minute and when it stops"
        )
    return {value: float(count) for value, count in counts.items()}


def run_tuning(  # noqa: PLR0913 - each may be left out
    folder: str,
    *,
    workload: dict[str, float] | None = None,
    prices: tuple[float, float, float] | None = None,
    filter_property: str | None = None,
    keep_limit: bool = False,
    quiet: bool = False,
    endpoint: str = "",
    master: str = "",
    settings: Mapping[str, str] | None = None,
) -> "Tuning":
    """Tune in a Spark session of this process, or on a cluster.

    Raises:
        Failed: something is wrong with what the user has given, or with the cluster.
    """
    from segments import SegmentsError  # noqa: PLC0415 - as below
    from segments.spark.session import (  # noqa: PLC0415
        SHORT,
        SparkMissing,
        check_installed,
        open_session,
    )

    try:
        check_installed()
    except SparkMissing as error:
        raise Failed(f"streamd tune needs more than is installed: {error}") from error
    from segments.spark.inventory import NotAStream  # noqa: PLC0415 - an extra
    from segments.spark.recommend import Prices  # noqa: PLC0415
    from segments.spark.streams import find_streams  # noqa: PLC0415
    from segments.spark.tuning import NothingToTune, tune as find  # noqa: PLC0415

    try:
        find_streams(folder, endpoint)  # before Spark takes its seconds to start
        waiting = nullcontext() if quiet else notes().status("reading the history, in Spark")
        opened = open_session(master, SHORT | dict(settings or {}))
        # In a thread, as Ctrl-C in the middle of Spark's code is ignored, or told at length.
        pool = ThreadPoolExecutor(1)
        # Twice: a failure of starting, and one of the work, of which Spark must not be gone.
        with pool, waiting, _failures_of_spark(), opened as spark, _failures_of_spark():
            work = pool.submit(
                find,
                spark,
                folder,
                workload=workload,
                prices=None if prices is None else Prices(*prices),
                filter_property=filter_property,
                keep_limit=keep_limit,
                endpoint=endpoint,
            )
            return work.result()
    except (NotAStream, NothingToTune, SegmentsError, ValueError) as error:
        raise Failed(str(error)) from error


@contextmanager
def _failures_of_spark() -> Iterator[None]:
    from segments.spark.session import trouble_of  # noqa: PLC0415 - an extra

    try:
        yield
    except Exception as error:
        trouble = trouble_of(error)
        if trouble is None:
            raise
        raise Failed(trouble) from error


def apply_tuning(tuning: "Tuning", name: str, uri: str) -> None:
    """Apply the recommendation to the running server."""
    changes = changes_of(tuning)

    async def work(client: "Client") -> None:
        await client.set_arguments(name, changes)

    run_client(uri, work)
    changed = ", ".join(f"{key}={value}" for key, value in changes.items() if value)
    note(f"changed {shown(name)}: {changed}")


def changes_of(tuning: "Tuning") -> dict[str, str]:
    """The recommendation as arguments of a stream."""
    changes = {
        "stream-filter-size-bytes": str(tuning.recommended.filter_size),
        "stream-filter-error-rate": "",  # it would make filters smaller again
    }
    if tuning.limit_changes:
        changes["stream-chunk-max-records"] = str(tuning.recommended.chunk_records)
    return changes


def print_tuning(tuning: "Tuning") -> None:
    """Print the recommendation beside the present state."""
    from segments.spark.report import quantile, summary  # noqa: PLC0415 - an extra

    census = tuning.census
    table = Table(
        title=Text(f"{shown(tuning.stream)}: {summary(tuning)}"),
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        padding=(0, 1),
    )
    for heading in ("", "now", "recommended"):
        table.add_column(heading, justify="left" if not heading else "right")
    for label, now, then in _rows(tuning.current, tuning.recommended):
        table.add_row(label, now, then)
    show(table)
    half, most = (quantile(census.distinct, share) for share in (0.5, 0.99))
    lines = [
        (
            f"Chunks: {census.chunks:,}, with {census.messages:,} messages in "
            f"{size(census.data_bytes)}; filter values: {census.num_values:,}, from the "
            f"{tuning.source}; half of the chunks hold at most {half}, one in a hundred more than "
            f"{most}."
        ),
        f"Asked for: {tuning.workload}.",
        *_costs(tuning),
    ]
    lines.append(
        f"The same with filters sized chunk by chunk: a filter size of auto with the error rate "
        f"{tuning.error_rate:g}."
    )
    found = tuning.confidence
    if found is not None:
        lines.append(
            f"Fitted on the older 70 % of the history it is {found.filter_size} bytes with "
            f"{found.fitted_rate:.2%} false positives; on the newer 30 % that gave "
            f"{found.tested_rate:.2%} and cost {found.regret:.1%} more than the best size there."
        )
    lines += [f"Note: {warning}." for warning in tuning.warnings]
    show_paragraphs("\n".join(lines))


def _costs(tuning: "Tuning") -> Iterator[str]:
    """What each filter property costs, where there are several."""
    if len(tuning.census.properties) == 1:
        return
    for name, values, keys, trailer in tuning.census.properties:
        which = shown(name) if name else "that comes first"
        yield (
            f"The filter property {which} has {values:,} values and "
            f"{keys:,.1f} keys in a chunk, {size(round(trailer))} of its trailer; without it a "
            f"filter of {tuning.size_without(name)} bytes would do as well as one of "
            f"{tuning.recommended.filter_size}."
        )


def _rows(now: "Candidate", then: "Candidate") -> list[tuple[str, str, str]]:
    def both(label: str, shown: Any) -> tuple[str, str, str]:  # noqa: ANN401 - a function
        return label, shown(now), shown(then)

    def times(found: "Candidate") -> str:
        return "-" if found.amplification is None else f"{found.amplification:,.1f}"

    return [
        both("filter size, bytes", lambda c: str(c.filter_size)),
        both("messages per chunk", lambda c: f"{c.chunk_records:,}"),
        both("chunks", lambda c: f"{c.chunks:,}"),
        both("error rate (false positives)", lambda c: f"{c.false_positive_rate:.2%}"),
        both("stored for filters and headers", lambda c: size(round(c.stored_bytes))),
        both("delivered", lambda c: size(round(c.delivered_bytes))),
        both("delivered for each byte needed", times),
        both("bytes skipped", lambda c: f"{c.skipped_share:.1%}"),
        both("total cost, bytes", lambda c: f"{c.cost:,.0f}"),
    ]
