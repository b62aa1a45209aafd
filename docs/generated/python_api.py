"""The public modules, from their docstrings and the annotations in their source."""

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from docs.generated.text import code, inline

# What stands where on the page, by module: "Name" with its constructor, or "Name()" for a class
# whose objects are made by others.
PARTS: dict[str, dict[str, str]] = {
    "connecting": {"clients": "connect Client()"},
    "publishing": {"clients": "Producer() SuperProducer() Message Properties Symbol"},
    "consuming": {
        "clients": "Consumer() Moved() SuperConsumer() Finding() ReceivedMessage() Dialect()",
        "clients.consumer": "ConsumerCounts()",
        "clients.finding": "SearchOptions",
    },
    "told": {"clients": "StreamInfo() StandingSelector() StoredOffset()"},
    "errors": {
        "clients": "StreamError ConnectionLost Closed Unsupported PublishFailed PartitionsFailed"
        " DamagedChunk ArrowMissing ColumnError ServerRefused AccessRefused LoginRefused NoOffset"
        " PreconditionFailed StreamDoesNotExist StreamExists StreamNotAvailable NoRoute"
        " SelectorError",
        "segments": "FormatError",
    },
    "spark": {
        "segments.spark": "register open_session local_session scan selector_column tune Tuning()"
        " Prices frames write_report SparkMissing NotAStream NothingToTune TierError"
    },
    "selector": {
        "segments.selector": "parse_sql parse_tags parse_selector parse_property Selector()"
        " MessageMatcher() Pushdown() PropertyWish()"
    },
    "testing": {
        "streamd.testing": "streamd_server run_server StreamdServer() ServerNotStarted",
        "streamd.config": "ConfigError",
    },
}
_UNDER_OTHERS = frozenset(("connecting", "publishing", "consuming", "told", "errors"))
# Public within the package: for what a producer or a consumer works with.
_INSIDE = {
    "Producer": frozenset(("pump", "room", "accept", "check", "is_full", "value_of")),
    "Consumer": frozenset(("gather", "grant", "has_arrived", "settle", "take_part")),
    "Selector": frozenset(("node",)),
}
_LISTENER = "See reconnecting"
_WIDTH = 96
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_TITLES = {"Args": "Arguments"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def markdown(part: str) -> str:
    """A section of the page: each name with its signature and all that its docstring says."""
    level = "####" if part in _UNDER_OTHERS else "###"
    lines: list[str] = []
    for module, names in PARTS[part].items():
        for name in names.split():
            item = getattr(import_module(module), name.removesuffix("()"))
            lines += [f"\n{level} {code(name.removesuffix('()'))}\n"]
            if inspect.isclass(item):
                lines += _class(item, is_made=name.endswith("()"))
            else:
                lines += _function(item)
    return "\n".join(lines).strip("\n")


def _function(function: Callable[..., Any], *, is_method: bool = False) -> Iterator[str]:
    yield f"```text\n{_signature(function, is_method=is_method)}\n```\n"
    yield from _described(inspect.getdoc(_plain(function)) or "")


def _class(item: type, *, is_made: bool) -> Iterator[str]:
    if issubclass(item, Exception):
        yield f"A kind of {code(item.__bases__[0].__name__)}.\n"
    elif not is_made and (fields := list(_fields(item))):
        yield f"```text\n{_call(item.__name__, fields)}\n```\n"
    yield from _described(inspect.getdoc(item) or "")
    if issubclass(item, enum.Enum):
        yield f"Its values: {', '.join(code(str(value)) for value in item)}.\n"
    for name, member in _members(item):
        if isinstance(member, property):
            getter = member.fget
            assert getter is not None
            kind = _returns(_definition(getter))
            yield f"**{code(f'{item.__name__}.{name}')}**: {code(kind)}\n"
            yield from _described(inspect.getdoc(getter) or "")
        else:
            yield f"**{code(f'{item.__name__}.{name}')}**\n"
            yield from _function(member, is_method=True)


def _members(item: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that are described, those of our base classes as well."""
    seen = set(_INSIDE.get(item.__name__, ()))
    for owner in item.__mro__:
        is_ours = owner.__module__.split(".")[0] in ("clients", "segments", "streamd")
        for name, member in vars(owner).items() if is_ours else ():
            text = inspect.getdoc(member) or ""
            is_code = isinstance(member, property) or inspect.isroutine(member)
            if name[0] == "_" or name in seen or not is_code:
                continue
            if text and not text.startswith(_LISTENER):
                seen.add(name)
                yield name, member


def _fields(item: type) -> Iterator[str]:
    """What a dataclass or a typed dictionary is made of, as its source has it."""
    definition = _definition(item)
    assert isinstance(definition, ast.ClassDef)
    defaults = {
        field.name: repr(field.default)
        for field in (dataclasses.fields(item) if dataclasses.is_dataclass(item) else ())
        if field.default is not dataclasses.MISSING
    }
    for line in definition.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name = line.target.id
            default = defaults.get(name, "…" if line.value else "")
            yield f"{name}: {ast.unparse(line.annotation)}{default and f' = {default}'}"


def _signature(function: Callable[..., Any], *, is_method: bool) -> str:
    definition = _definition(function)
    assert not isinstance(definition, ast.ClassDef)
    arguments = definition.args
    kinds = {
        argument.arg: ast.unparse(argument.annotation)
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            *filter(None, (arguments.vararg, arguments.kwarg)),
        )
        if argument.annotation
    }
    parameters = list(inspect.signature(_plain(function)).parameters.values())[is_method:]
    given = [str(_as_written(parameter, kinds)) for parameter in parameters]
    by_name = [n for n, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if by_name and not arguments.vararg:
        given.insert(by_name[0], "*")
    is_async = "async " if isinstance(definition, ast.AsyncFunctionDef) else ""
    returned = _returns(definition)
    made = re.fullmatch(r"(Async)?Iterator\[(.*)\]", returned)
    if made and _makes_a_context(definition):
        is_async, returned = "", f"Abstract{made[1] or ''}ContextManager[{made[2]}]"
    return f"{is_async}{_call(definition.name, given)} -> {returned}"


def _as_written(parameter: inspect.Parameter, kinds: dict[str, str]) -> inspect.Parameter:
    """With its annotation as the source has it, and the value of its default."""
    if parameter.name in kinds:
        parameter = parameter.replace(annotation=_Text(kinds[parameter.name]))
    if isinstance(parameter.default, enum.Enum):
        parameter = parameter.replace(default=parameter.default.value)
    return parameter


class _Text(str):
    """Text that stands in a signature as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def _makes_a_context(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    made = {contextmanager.__name__, asynccontextmanager.__name__}
    return any(isinstance(d, ast.Name) and d.id in made for d in definition.decorator_list)


def _call(name: str, given: list[str]) -> str:
    line = f"{name}({', '.join(given)})"
    if len(line) <= _WIDTH:
        return line
    lines = "".join(f"    {text},\n" for text in given)
    return f"{name}(\n{lines})"


def _returns(definition: Definition) -> str:
    assert not isinstance(definition, ast.ClassDef)
    return ast.unparse(definition.returns) if definition.returns else "None"


@cache
def _definition(item: object) -> Definition:
    found = ast.parse(textwrap.dedent(inspect.getsource(_plain(item)))).body[0]
    assert isinstance(found, Definition)
    return found


def _plain(item: Any) -> Any:  # noqa: ANN401 - whatever is public
    """Without what decorators have put around it, fixtures of pytest among them."""
    return inspect.unwrap(getattr(item, "_get_wrapped_function", lambda: item)())


def _described(docstring: str) -> Iterator[str]:
    """A docstring as Markdown: paragraphs, and its sections as lists."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        first, _, rest = paragraph.partition("\n")
        section = _SECTION.match(first)
        if section is None:
            yield f"{inline(' '.join(paragraph.split()))}\n"
            continue
        yield f"{_TITLES.get(section[1], section[1])}:\n"
        if section[1] in ("Returns", "Yields"):
            yield f"* {inline(' '.join(rest.split()))}\n"
            continue
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(rest)):
            names, _, meaning = " ".join(entry.split()).partition(": ")
            yield f"* {', '.join(map(code, names.split(', ')))}: {inline(meaning)}"
        yield ""
