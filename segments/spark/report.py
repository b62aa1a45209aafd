"""What tuning leaves behind: report.json, sizes.parquet, distribution.parquet, report.png."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from segments.format_constants import MAX_FILTER_SIZE
from segments.property_keys import meaning_of
from segments.spark.recommend import Candidate
from segments.spark.tuning import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame, SparkSession

FORMAT_VERSION = 1
_NOW, _THEN, _LINE, _SOFT = "#c0392b", "#1e8449", "#34495e", "#95a5a6"
_MEGABYTE = 1e6


def write_report(tuning: Tuning, folder: str) -> list[str]:
    """Write the four files, each under another name first; gives their paths.

    Raises:
        OSError: the folder cannot be written to.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for name, write in (
        ("report.json", _write_json),
        ("sizes.parquet", lambda t, path: pq.write_table(sizes_table(t), path)),
        ("distribution.parquet", lambda t, path: pq.write_table(distribution_table(t), path)),
        ("report.png", _write_picture),
    ):
        temporary = target / f".{name}.new"
        write(tuning, temporary)
        temporary.replace(target / name)
        made.append(str(target / name))
    return made


def as_json(tuning: Tuning) -> dict[str, Any]:
    """Everything but the tables, as plain values."""
    census = tuning.census
    return {
        "format_version": FORMAT_VERSION,
        "stream": tuning.stream,
        "source": tuning.source,
        "hash": "mmh3 x64 128, seed 0 (filter scheme 1)",
        "chunks": census.chunks,
        "messages": census.messages,
        "data_bytes": census.data_bytes,
        "filter_values": census.num_values,
        "filter_properties": [
            {**found._asdict(), "size_without": tuning.size_without(found.name)}
            for found in census.properties
        ],
        "distinct_per_chunk": {
            name: quantile(census.distinct, share)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
        },
        "most_frequent": [
            {
                **_spoken(value),
                "share": messages / census.messages,
            }
            for value, messages in list(census.frequencies.items())[:10]
        ],
        "workload": tuning.workload,
        "prices": asdict(tuning.prices),
        "sampled_share": tuning.sampled_share,
        "current": _plain(tuning.current),
        "recommended": {**_plain(tuning.recommended), "filter_error_rate": tuning.error_rate},
        "chunk_limits": [_plain(found) for found in tuning.limits],
        "confidence": tuning.confidence and asdict(tuning.confidence),
        "warnings": list(tuning.warnings),
    }


def _spoken(key: bytes) -> dict[str, str]:
    """A filter value for people; of a further property with its name."""
    name, value = meaning_of(key)
    shown = key if name is None else value or b""
    found = {"value": shown.decode("utf-8", "backslashreplace")}
    return found if name is None else {"property": name, **found}


def _plain(found: Candidate) -> dict[str, Any]:
    return {**asdict(found), "read_amplification": found.amplification}


def quantile(histogram: dict[int, tuple[int, int]], share: float) -> int:
    """The number of values that this share of the chunks does not exceed."""
    left = share * sum(chunks for chunks, _ in histogram.values())
    for number, (chunks, _) in sorted(histogram.items()):
        left -= chunks
        if left <= 1e-9:  # noqa: PLR2004 - sums of floats
            return number
    return 0


def sizes_table(tuning: Tuning) -> pa.Table:
    """Every size that was tried with the recommended chunk limit, and the present state."""
    tried = [*tuning.sizes]
    if tuning.current not in tried:
        tried.insert(0, tuning.current)
    rows = [
        {
            "stream": tuning.stream,
            "size": found.filter_size,
            "chunk_records": found.chunk_records,
            "chunks": found.chunks,
            "fpr_exact": found.false_positive_rate,
            "fpr_closed": found.expected_rate,
            "needed_bytes": found.needed_bytes,
            "delivered_bytes": found.delivered_bytes,
            "read_amplification": found.amplification,
            "skipped_share": found.skipped_share,
            "header_bytes": found.stored_bytes,
            "header_share": found.stored_bytes / max(1, tuning.census.data_bytes),
            "cost": found.cost,
            "is_current": found == tuning.current,
            "is_recommended": found == tuning.recommended,
        }
        for found in tried
    ]
    return pa.Table.from_pylist(rows)


def distribution_table(tuning: Tuning) -> pa.Table:
    """How many chunks hold how many different filter values."""
    rows = [
        {"stream": tuning.stream, "n_distinct": n, "chunks": chunks, "data_bytes": size}
        for n, (chunks, size) in sorted(tuning.census.distinct.items())
    ]
    return pa.Table.from_pylist(rows)


def frames(tuning: Tuning, spark: "SparkSession") -> dict[str, "DataFrame"]:
    """The same two tables as DataFrames."""
    tables = {"sizes": sizes_table(tuning), "distribution": distribution_table(tuning)}
    return {name: spark.createDataFrame(table) for name, table in tables.items()}


def _write_json(tuning: Tuning, path: Path) -> None:
    path.write_text(json.dumps(as_json(tuning), indent=2, ensure_ascii=False) + "\n")


def _write_picture(tuning: Tuning, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes its time to load

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    figure.suptitle(
        f"Stream {tuning.stream}: {summary(tuning)}",
        fontsize=13,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    rates, costs, values = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    _draw_rates(rates, tuning)
    _draw_costs(costs, tuning)
    _draw_values(values, tuning)
    figure.savefig(path, dpi=110, format="png")


def summary(tuning: Tuning) -> str:
    """The recommendation in one line."""
    now, then = tuning.current, tuning.recommended
    if now == then:
        return f"keep filters of {now.filter_size} bytes and {now.chunk_records} messages per chunk"
    limit = f" and {then.chunk_records} messages per chunk" if tuning.limit_changes else ""
    return (
        f"filters of {then.filter_size} bytes{limit} would cost {1 - then.cost / now.cost:.0%} less"
    )


def _label(found: Candidate, word: str) -> str:
    return (
        f"{word}: {found.filter_size} bytes, {found.chunk_records} messages per chunk: "
        f"{found.false_positive_rate:.2%}"
    )


def _draw_rates(axes: "Axes", tuning: Tuning) -> None:
    sizes = [found.filter_size for found in tuning.sizes]
    smallest = 1e-6  # a logarithm has no zero
    exact = [max(found.false_positive_rate, smallest) for found in tuning.sizes]
    formula = [max(found.expected_rate, smallest) for found in tuning.sizes]
    axes.plot(sizes, formula, color=_SOFT, linestyle="--", label="by formula")
    axes.plot(sizes, exact, color=_LINE, label="replayed on the stream's history")
    for found, color, word in _marked(tuning):
        rate = max(found.false_positive_rate, smallest)
        axes.plot(
            [found.filter_size], [rate], "o", color=color, markersize=9, label=_label(found, word)
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.set_ylim(max(min(exact) / 2, 1e-5), 1)
    axes.set_title("Chunks delivered needlessly", loc="left")
    axes.set_xlabel("filter size, bytes")
    axes.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    axes.grid(alpha=0.3)


def _marked(tuning: Tuning) -> list[tuple[Candidate, str, str]]:
    if tuning.current == tuning.recommended:
        return [(tuning.current, _THEN, "now, and recommended")]
    return [(tuning.current, _NOW, "now"), (tuning.recommended, _THEN, "recommended")]


def _draw_costs(axes: "Axes", tuning: Tuning) -> None:
    sizes = [found.filter_size for found in tuning.sizes]
    prices = tuning.prices
    work = [prices.store * prices.chunk * found.chunks / _MEGABYTE for found in tuning.sizes]
    stored = [prices.store * found.stored_bytes / _MEGABYTE for found in tuning.sizes]
    total = [found.cost / _MEGABYTE for found in tuning.sizes]
    vain = [t - s - w for t, s, w in zip(total, stored, work, strict=True)]
    axes.stackplot(
        sizes,
        work,
        stored,
        vain,
        colors=("#d5dbdb", "#aeb6bf", "#f5cba7"),
        labels=("work on chunks", "filters and headers stored", "delivered needlessly"),
    )
    axes.plot(sizes, total, color=_LINE)
    for found, color, word in _marked(tuning):
        cost = found.cost / _MEGABYTE
        axes.plot([found.filter_size], [cost], "o", color=color, markersize=9)
        is_far_right = found.filter_size > 0.7 * MAX_FILTER_SIZE
        axes.annotate(
            f"{word}\n{cost:,.1f} MB",
            (found.filter_size, cost),
            xytext=(0, 14) if is_far_right else (12, 0),
            textcoords="offset points",
            color=color,
            ha="right" if is_far_right else "left",
            va="bottom" if is_far_right else "center",
            fontweight="bold",
            fontsize=9,
        )
    axes.set_ylim(0, 1.15 * max(*total, tuning.current.cost / _MEGABYTE))
    axes.set_title(
        f"Total cost with {tuning.recommended.chunk_records} messages per chunk", loc="left"
    )
    axes.set_xlabel("filter size, bytes")
    axes.set_ylabel("MB, over the whole history")
    axes.legend(
        fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, ncols=2
    )
    axes.grid(alpha=0.3)


def _draw_values(axes: "Axes", tuning: Tuning) -> None:
    histogram = sorted(tuning.census.distinct.items())
    numbers = [number for number, _ in histogram]
    axes.bar(numbers, [chunks for _, (chunks, _) in histogram], color=_LINE, width=1)
    axes.set_xlim(numbers[0] - 2, numbers[-1] + 2)
    axes.locator_params(axis="x", integer=True)
    median = quantile(tuning.census.distinct, 0.5)
    axes.axvline(median, color=_NOW, linestyle="--")
    axes.set_title("Different values in a chunk, now", loc="left")
    axes.set_xlabel(f"filter values (dashed: the median, {median})")
    axes.set_ylabel("chunks")
    axes.grid(alpha=0.3)
