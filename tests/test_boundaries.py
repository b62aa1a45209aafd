"""What each package may import: the data path runs forward, and the formats know no event loop."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from wheels import CLIENT

ROOT = Path(__file__).parent.parent
EVENT_LOOPS = ("trio", "anyio", "asyncio")
SOCKETS = ("socket", "ssl", "selectors")
SPARK = ("pyspark", "pyarrow", "numpy", "matplotlib", "segments.spark")
# What only the engine has: doors ask it, from processes of their own.
INSIDE = (
    "streamd.broker",
    "streamd.auth",
    "streamd.engine",
    "streamd.connections",
    "segments.log",
    "segments.Log",
)


# Every file of the product is in one of these layers; it may import what is below, and its own.
# A folder stands for all of its files but those of a layer that names a folder inside it.
LAYERS = (
    ("segments", "streamd/config.py", "streamd/version.py", "streamd/patterns.py"),
    (
        "streamd/wire/__init__.py",
        "streamd/wire/stored_messages.py",
        "streamd/wire/stream",
        "streamd/wire/amqp091",
        "streamd/wire/amqp10",
    ),
    ("streamd/net",),
    ("streamd/operations",),
    ("streamd/hop",),
    ("streamd/broker",),
    ("streamd/auth",),
    ("streamd/engine",),
    ("streamd/connections",),
    (
        "streamd/connections/stream",
        "streamd/connections/amqp091",
        "streamd/connections/amqp10",
    ),
    ("streamd/connections/amqp_port.py",),
    ("streamd/metrics",),
    ("streamd/http_api",),
    ("streamd/console",),
    ("streamd/doors.py",),
    ("streamd/server.py", "streamd/service_manager.py"),
    ("streamd/processes",),
    ("clients",),  # imports of the server only its wire, see below
    ("streamd/__init__.py",),  # has the names of the client library
    ("streamd/cli", "streamd/cli/demo", "streamd/__main__.py", "streamd/testing.py"),
)
# Rooms on one floor that know nothing of each other.
APART = (
    ("streamd/wire/stream", "streamd/wire/amqp091", "streamd/wire/amqp10"),
    ("streamd/connections/stream", "streamd/connections/amqp091", "streamd/connections/amqp10"),
)
PRODUCT = ("streamd", "segments", "clients")


class Rule(NamedTuple):
    """Modules that nothing in a folder imports; a lazy import counts unless `lazy_allowed`."""

    folder: str
    never: tuple[str, ...]
    lazy_allowed: bool = False


RULES = (
    Rule("segments", (*EVENT_LOOPS, *SOCKETS)),
    Rule("streamd/wire", (*EVENT_LOOPS, *SOCKETS, "time")),
    Rule("streamd/broker", ("streamd.wire", *SOCKETS)),
    Rule("streamd/auth", ("streamd.wire", *SOCKETS)),
    *(
        Rule(f"streamd/{door}", INSIDE)
        for door in ("operations", "hop", "metrics", "http_api", "console")
    ),
    Rule("streamd", SPARK, lazy_allowed=True),
    Rule("clients", SPARK, lazy_allowed=True),  # record batches, when they are asked for
    Rule("clients", ("trio", "asyncio")),
)


class Import(NamedTuple):
    file: str
    line: int
    module: str
    lazy: bool


@cache
def imports(folder: str) -> tuple[Import, ...]:
    files = sorted((ROOT / folder).rglob("*.py"))
    return tuple(item for file in files for item in imports_of(file))


@cache
def imports_of(file: Path) -> tuple[Import, ...]:
    tree = ast.parse(file.read_text())
    top_level = set(ast.walk(ast.Module(_run_at_import(tree.body), [])))
    where = str(file.relative_to(ROOT))
    return tuple(
        Import(where, getattr(node, "lineno", 0), module, node not in top_level)
        for node in ast.walk(tree)
        for module in _modules(node)
    )


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


def product() -> list[str]:
    """All files, relative to the root."""
    found = [f for folder in PRODUCT for f in sorted((ROOT / folder).rglob("*.py"))]
    return [str(file.relative_to(ROOT)) for file in found]


def layer_of(file: str) -> int:
    """The number of a file's layer: of all that name it the one that says most."""
    places = {place: n for n, layer in enumerate(LAYERS) for place in layer}
    named = [place for place in places if file == place or file.startswith(f"{place}/")]
    assert named, f"{file} is in no layer: say in LAYERS what it may import"
    return places[max(named, key=len)]


@cache
def file_of(module: str) -> str | None:
    """The file that an imported name comes from; None when it is not of the product."""
    parts = module.split(".")
    if parts[0] not in PRODUCT:
        return None
    for size in range(len(parts), 0, -1):
        path = "/".join(parts[:size])
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if (ROOT / candidate).is_file():
                return candidate
    raise AssertionError(f"{module} is nowhere")


@cache
def edges() -> tuple[tuple[str, str, int], ...]:
    """Who imports whom, and in which line; imports for types and lazy ones count as well."""
    found = [(i.file, file_of(i.module), i.line) for folder in PRODUCT for i in imports(folder)]
    return tuple((file, to, line) for file, to, line in found if to is not None and to != file)


def test_imports_run_downwards() -> None:
    upwards = [
        f"{file}:{line} imports {target}"
        for file, target, line in edges()
        if layer_of(target) > layer_of(file)
    ]
    assert upwards == []


def test_every_file_is_in_a_layer() -> None:
    files = product()
    assert len(files) > 100, "or this test looks at the wrong place"
    assert {layer_of(file) for file in files} == set(range(len(LAYERS)))


def test_rooms_on_one_floor_know_nothing_of_each_other() -> None:
    found = [
        f"{file}:{line} imports {target}"
        for file, target, line in edges()
        for rooms in APART
        for one in rooms
        for other in rooms
        if one != other and file.startswith(f"{one}/") and target.startswith(f"{other}/")
    ]
    assert found == []


def test_no_files_import_each_other_in_a_circle() -> None:
    targets: dict[str, set[str]] = {}
    for file, target, _ in edges():
        targets.setdefault(file, set()).add(target)
    check_no_circle(targets)


def test_in_each_folder_imports_run_one_way_between_files_and_folders() -> None:
    """A folder that is below some of its neighbours and above others is two folders."""
    neighbours: dict[str, dict[str, set[str]]] = {}
    for file, target, _ in edges():
        house = os.path.commonpath((file, target))
        one, other = (path.removeprefix(f"{house}/").split("/")[0] for path in (file, target))
        neighbours.setdefault(house, {}).setdefault(one, set()).add(other)
    del neighbours[""]  # the command line is in streamd, and uses the clients, who use its wire
    assert len(neighbours) > 10, "or this test looks at the wrong place"
    for targets in neighbours.values():
        check_no_circle(targets)


def check_no_circle(targets: dict[str, set[str]]) -> None:
    try:
        tuple(graphlib.TopologicalSorter(targets).static_order())
    except graphlib.CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None


def test_the_broker_and_the_doors_know_no_protocol_as_bytes() -> None:
    """A third protocol is a folder in wire/, one in connections/ and a line in server.py.

    Metrics name the codes that the stream protocol answers with, and two of RabbitMQ's paths write
    messages as AMQP 0-9-1 does.
    """
    folders = ("streamd/wire/", "streamd/connections/", "streamd/metrics/", "streamd/cli/")
    allowed = (*folders, "streamd/processes/amqp.py", "streamd/http_api/queue_messages.py")
    users = {
        file
        for file, target, _ in edges()
        if target.startswith("streamd/wire/") and not file.startswith((*allowed, "clients/"))
    }
    assert users == set()


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
    allowed = (
        "segments.selector",
        "segments.amqp10",
        "segments.amqp10_codes",
        "segments.errors",
    )
    of_segments = [i for i in imports("segments/selector") if within(i.module, "segments")]
    assert [i for i in of_segments if not any(within(i.module, name) for name in allowed)] == []


def test_only_record_batches_and_spark_need_the_extras() -> None:
    users = [i for i in imports("segments") if any(within(i.module, name) for name in SPARK)]
    assert users, "or this test looks at the wrong place"
    rooms = ("segments/arrow/", "segments/spark/")
    assert {i.file for i in users if not i.file.startswith(rooms)} == set()


def test_segments_spark_can_be_imported_without_the_extra() -> None:
    check = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'numpy', 'pandas'): sys.modules[name] = None\n"
        "import segments.spark"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_only_one_file_needs_the_extra_of_the_tier() -> None:
    users = {i.file for folder in PRODUCT for i in imports(folder) if within(i.module, "obstore")}
    assert users == {"segments/store/remote_store.py"}


def test_the_wheel_of_the_client_has_all_that_it_imports() -> None:
    """Of the server that is the wire of the stream protocol."""
    found = [(file, target) for file, target, _ in edges() if file.startswith(CLIENT)]
    assert found, "or this test looks at the wrong place"
    assert [pair for pair in found if not pair[1].startswith(CLIENT)] == []


def test_only_the_command_line_uses_the_client_library() -> None:
    users = {item.file for item in imports("streamd") if within(item.module, "clients")}
    assert users, "or this test looks at the wrong place"
    users -= {"streamd/__init__.py"}  # for who imports it from there
    assert {file for file in users if not file.startswith("streamd/cli/")} == set()


def test_functions_that_are_named_as_questions_answer_them() -> None:
    """A name that begins with is, has or was is no command."""
    commands = [
        f"{file}:{node.lineno} {node.name}"
        for file in product()
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.lstrip("_").startswith(("is_", "has_", "was_"))
        and not re.search("bool|TypeGuard", ast.unparse(node.returns or ast.Constant("")))
    ]
    assert commands == []


def loaded(module: str, others: str) -> set[str]:
    """Which of some modules, with spaces between them, a fresh Python loads with this one."""
    command = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    return set(result.stdout.decode().split()) & set(others.split())


def test_what_the_server_starts_without() -> None:
    """HTTP is loaded where it is on; rich draws tables. Both take long."""
    unused = "starlette hypercorn h2 asyncio rich"
    assert loaded("streamd.cli.serve", unused) == set()


@pytest.mark.parametrize("door", ["doors", "amqp"])
def test_a_door_is_loaded_without_what_the_engine_has(door: str) -> None:
    assert loaded(f"streamd.processes.{door}", " ".join(INSIDE)) == set()


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ("--help", "trio anyio clients streamd.server"),
        ("ping --help", "trio anyio clients streamd.server"),
        ("ping", "streamd.server streamd.broker starlette sqlite3 re2 asyncio"),
        ("print unit", "trio anyio clients streamd.server"),
        ("stream list", "streamd.server streamd.broker.broker starlette sqlite3 re2 asyncio"),
    ],
)
def test_what_commands_start_without(words: str, unused: str) -> None:
    """Commands are typed, and run as health checks: they load what they need and no more."""
    program = (
        "import sys\nfrom streamd.cli import main\n"
        f"try: main({words.split()})\n"
        "except SystemExit: print('loaded:', *sys.modules)"
    )
    environment = os.environ | {"STREAMD_URI": "rabbitmq-stream://127.0.0.1:1"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = result.stdout.rpartition("loaded:")[2].split()
    assert "streamd.cli" in found
    assert set(found) & {*unused.split(), "rich", "numpy", "pyspark", "h2"} == set()


def test_the_server_starts_without_the_client_library() -> None:
    check = "import sys; from streamd import server; sys.exit('clients' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_client_library_loads_nothing_that_only_a_server_needs() -> None:
    of_servers = "trio outcome hypercorn h11 starlette click rich sqlite3 streamd.server"
    assert loaded("clients", of_servers) == set()
