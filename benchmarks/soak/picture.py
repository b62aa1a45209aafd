"""Memory, descriptors and messages over time, with what was done to the server."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.soak.child import Fault, Sample

_COLORS = {"kill": "#c0392b", "stop": "#e08a2e", "pause": "#8e9aa6", "store": "#8e44ad"}
_LINE = "#2a7f9e"
_WARM_SECONDS = 45  # of each life: until all caches are filled, and retention is at work
_LEAST_SECONDS = 30  # of a life behind that


def slope(samples: Sequence[Sample]) -> float | None:
    """Bytes of memory per second, within the lives of the server, each after its first seconds.

    None where no life was long enough.
    """
    pairs: list[tuple[float, float]] = []
    for _, life in groupby(samples, key=lambda sample: sample.life):
        taken = list(life)
        warm = [s for s in taken if s.at - taken[0].at >= _WARM_SECONDS]
        if warm and warm[-1].at - warm[0].at >= _LEAST_SECONDS:
            middle = sum(s.at for s in warm) / len(warm)
            level = sum(s.memory for s in warm) / len(warm)
            pairs += [(s.at - middle, s.memory - level) for s in warm]
    spread = sum(at * at for at, _ in pairs)
    return sum(at * memory for at, memory in pairs) / spread if spread else None


def draw(
    path: Path,
    samples: Sequence[Sample],
    faults: Sequence[Fault],
    messages: Sequence[tuple[float, int, int]],
    title: str,
) -> None:
    """Draw into a PNG file.

    Args:
        path: of the file.
        samples: of the server.
        faults: done to it.
        messages: seconds, and how many were confirmed and received so far.
        title: of the picture.
    """
    picture = Picture(figsize=(11, 8), layout="constrained")
    rates, memory, descriptors = picture.subplots(3, 1, sharex=True)
    pairs = list(pairwise(messages))
    times = [after[0] for _, after in pairs]
    for column, label, color in ((1, "confirmed", _LINE), (2, "received", "#7a9e2a")):
        rates.plot(
            times,
            [(b[column] - a[column]) / max(b[0] - a[0], 0.01) for a, b in pairs],
            color=color,
            label=label,
            linewidth=1,
        )
    rates.set_ylabel("messages per second")
    rates.set_ylim(bottom=0)
    for _, life in groupby(samples, key=lambda sample: sample.life):
        taken = list(life)
        at = [s.at for s in taken]
        memory.plot(at, [s.memory / 1e6 for s in taken], color=_LINE, linewidth=1.2)
        descriptors.plot(at, [s.descriptors for s in taken], color=_LINE, linewidth=1.2)
    memory.set_ylabel("memory, MB")
    memory.set_ylim(bottom=0)
    descriptors.set_ylabel("file descriptors")
    descriptors.set_ylim(bottom=0)
    descriptors.set_xlabel("seconds")
    for axes in (rates, memory, descriptors):
        _mark(axes, faults)
    handles, labels = rates.get_legend_handles_labels()
    rates.legend(handles, labels, loc="upper left", ncols=5, frameon=False, fontsize=9)
    picture.suptitle(title, fontweight="bold", fontsize=11)
    picture.savefig(path, dpi=110)


def _mark(axes: Axes, faults: Sequence[Fault]) -> None:
    seen: set[str] = set()
    for fault in faults:
        label = None if fault.kind in seen else fault.kind
        seen.add(fault.kind)
        axes.axvline(fault.at, color=_COLORS[fault.kind], linewidth=0.8, alpha=0.7, label=label)
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
