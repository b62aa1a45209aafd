"""Byte rulers: what a declaration of `tests.segments.layout` looks like, drawn four bytes a row.

The documentation shows them, and a test draws them again from the declarations.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from construct import Computed, Peek, SizeofError, Struct

_COLUMNS, _WIDTH = 4, 15
_NONE: Mapping[str, int] = MappingProxyType({})
_Row = list[str]


def ruler(layout: Struct, sizes: Mapping[str, int] = _NONE) -> str:
    """The drawing of a struct; a field of any size is the rest of a row.

    Args:
        layout: the declaration.
        sizes: in bytes, of fields whose size depends on something else.
    """
    rows: list[_Row] = [[]]
    labels = ["0"]
    offset: int | None = 0
    for name, size in _fields(layout, sizes):
        for _ in range(_COLUMNS - len(rows[-1]) % _COLUMNS if size is None else size):
            if len(rows[-1]) == _COLUMNS:
                rows.append([])
                labels.append("" if offset is None else str(offset))
            rows[-1].append(name)
            offset = None if offset is None or size is None else offset + 1
    rows[-1] += [""] * (_COLUMNS - len(rows[-1]))
    return "\n".join(_draw(rows, labels))


def _fields(layout: Struct, sizes: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    for field in layout.subcons:
        if isinstance(field.subcon, Computed | Peek):
            continue
        try:
            yield field.name, sizes.get(field.name) or field.sizeof()
        except SizeofError:
            yield f"{field.name} …", None


def _draw(rows: list[_Row], labels: list[str]) -> Iterator[str]:
    nothing = [""] * _COLUMNS
    yield " " * 7 + "".join(f"{column:<{_WIDTH}}" for column in range(_COLUMNS)).rstrip()
    named: set[str] = set()
    for above, row, label in zip([nothing, *rows], rows, labels, strict=False):
        yield f"     {_border(above, row)}".rstrip()
        yield f"{label:>4} {_text(row, named)}".rstrip()
    yield f"     {_border(rows[-1], nothing)}".rstrip()


def _text(row: _Row, named: set[str]) -> str:
    """The fields of a row, each named where it first has room."""
    text, at = "|", 0
    while at < _COLUMNS:
        end = next((n for n in range(at, _COLUMNS) if row[n] != row[at]), _COLUMNS)
        width = (end - at) * _WIDTH - 1
        has_room = row[at] not in named and len(row[at]) < width
        named.update([row[at]] if has_room else [])
        text += f"{' ' + row[at] if has_room else '':<{width}}" + ("|" if row[at] else " ")
        at = end
    return text


def _border(above: _Row, below: _Row) -> str:
    lines = ["-" if one != other else " " for one, other in zip(above, below, strict=True)]
    text = ""
    for column in range(_COLUMNS + 1):
        around = "".join(lines[max(column - 1, 0) : column + 1])
        left, right = ("", *above, "")[column : column + 2]
        text += "+" if "-" in around else "|" if left != right else " "
        text += lines[column] * (_WIDTH - 1) if column < _COLUMNS else ""
    return text
