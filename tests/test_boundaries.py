"""What each package may import: the data path runs forward, and the formats know no event loop."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
EVENT_LOOPS = ("trio", "anyio", "asyncio")
SOCKETS = ("socket", "ssl", "selectors")
SPARK = ("pyspark", "pyarrow", "numpy", "matplotlib", "segments.spark")


class Rule(NamedTuple):
    """Modules that nothing in a folder imports; a lazy import counts unless `lazy_allowed`."""

    folder: str
    never: tuple[str, ...]
    lazy_allowed: bool = False


RULES = (
    Rule("segments", (*EVENT_LOOPS, *SOCKETS, "streamd", "clients")),
    Rule("streamd/wire/stream", (*EVENT_LOOPS, *SOCKETS, "time", "segments", "clients")),
    Rule("streamd/wire/amqp091", (*EVENT_LOOPS, *SOCKETS, "time", "clients", "streamd.broker.stream")),
    Rule("streamd", ("clients", *SPARK), lazy_allowed=True),
    Rule("clients", SPARK),
    Rule("clients", ("trio", "asyncio")),
)
ONLY_THE_WIRE = "streamd.wire.stream"


class Import(NamedTuple):
    file: str
    line: int
    module: str
    lazy: bool


def imports(folder: str) -> Iterator[Import]:
    for file in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text())
        top_level = set(ast.walk(ast.Module(_run_at_import(tree.body), [])))
        for node in ast.walk(tree):
            for module in _modules(node):
                where = str(file.relative_to(ROOT))
                yield Import(where, getattr(node, "lineno", 0), module, node not in top_level)


def _run_at_import(body: list[ast.stmt]) -> list[ast.stmt]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in body if not isinstance(node, functions) and not _for_types(node)]


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.folder)
def test_a_package_leaves_alone_what_is_not_its_business(rule: Rule) -> None:
    found = list(imports(rule.folder))
    assert found, "the folder is empty"
    broken = [
        item
        for item in found
        if any(within(item.module, name) for name in rule.never)
        and not (item.lazy and rule.lazy_allowed)
    ]
    assert broken == []


def test_selectors_stand_on_their_own_but_for_the_values_of_amqp() -> None:
    allowed = ("segments.selector", "segments.amqp10", "segments.errors")
    of_segments = [i for i in imports("segments/selector") if within(i.module, "segments")]
    assert [i for i in of_segments if not any(within(i.module, name) for name in allowed)] == []


def test_only_segments_spark_needs_the_extra() -> None:
    users = [i for i in imports("segments") if any(within(i.module, name) for name in SPARK)]
    assert users, "or this test looks at the wrong place"
    assert {i.file for i in users if not i.file.startswith("segments/spark/")} == set()


def test_segments_spark_can_be_imported_without_the_extra() -> None:
    check = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'numpy', 'pandas'): sys.modules[name] = None\n"
        "import segments.spark"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_client_library_shares_only_the_wire_with_the_server() -> None:
    of_the_server = [item for item in imports("clients") if within(item.module, "streamd")]
    assert of_the_server, "or this test looks at the wrong place"
    assert [item for item in of_the_server if not within(item.module, ONLY_THE_WIRE)] == []


def test_only_the_command_line_uses_the_client_library() -> None:
    users = {item.file for item in imports("streamd") if within(item.module, "clients")}
    assert users, "or this test looks at the wrong place"
    assert {file for file in users if not file.startswith("streamd/cli/")} == set()


def test_the_server_starts_without_the_client_library() -> None:
    check = "import sys, streamd.server; sys.exit('clients' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
