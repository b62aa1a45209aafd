"""A search as something to be typed or run elsewhere: a command, and programs for two clients.

The command asks for the same search. The programs consume: they read forward from where the search
begins, and go on when they have come to the end. All that the search asks for is one selector
there, which pika leaves to the server. rstream has no selectors: its program asks for the chunks
that may hold a match, and tests each message with the parser of streamd.
"""

import re
import shlex
from typing import NamedTuple
from urllib.parse import quote

from segments.search.request import SearchRequest
from segments.selector import SelectorError, parse_property, parse_selector, parse_tags
from segments.selector.nodes import Tags
from segments.selector.pushdown import MAX_VALUES
from streamd.console.search_form import OFFSET, TIME, SearchForm

_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
_SPECIAL = frozenset('"$`!\\')  # inside quotation marks
_PASSWORD = "STREAMD_PASSWORD"  # noqa: S105 - a name


class Where(NamedTuple):
    """Where a program finds the stream."""

    host: str
    stream_port: int
    amqp_port: int
    user: str
    vhost: str
    stream: str


class Snippet(NamedTuple):
    """Something to be copied."""

    name: str
    title: str
    text: str


def snippets(where: Where, form: SearchForm, request: SearchRequest) -> list[Snippet]:
    """A search, for use elsewhere.

    Args:
        where: the stream.
        form: the search, which has been understood.
        request: the same, as the server searches.
    """
    if not _HOST.fullmatch(where.host):
        where = where._replace(host="localhost")
    return [
        Snippet("command", "Command line", _command(where, form, request)),
        Snippet("rstream", "Python, rstream", _rstream(where, form, request)),
        Snippet("pika", "Python, pika", _pika(where, form, request)),
    ]


def _command(where: Where, form: SearchForm, request: SearchRequest) -> str:
    asked = [("--key", key) for key in request.keys]
    asked += [
        (option, text)
        for option, text in (
            ("--property", form.where if request.keys else ""),
            ("--sql", form.sql),
            ("--tags", form.tags),
            ("--filter", form.filter),
            ("--offset", _text_of(request.offset)),
            ("--from", _text_of(request.from_ms)),
            ("--limit", str(request.limit)),
        )
        if text
    ]
    options = [f"{option}{_behind_an_option(text)}" for option, text in asked]
    if request.newest:
        options.append("--newest")
    user, vhost = quote(where.user, safe=""), quote(where.vhost, safe="")
    password = "" if where.user == "guest" else f":${_PASSWORD}"
    uri = f"rabbitmq-stream://{user}{password}@{where.host}:{where.stream_port}/{vhost}"
    mark = "-- " if where.stream.startswith("-") else ""
    name = f"{mark}{_quoted(where.stream)}"
    return " ".join(["streamd find", *options, f'--uri "{uri}"', name])


def _text_of(number: int | None) -> str:
    return "" if number is None else str(number)


def _behind_an_option(text: str) -> str:
    return f"={_quoted(text)}" if text.startswith("-") else f" {_quoted(text)}"


def _quoted(text: str) -> str:
    """A word for a shell; characters that cannot be seen are written as bash and zsh read them."""
    if text.isprintable():
        is_simpler = "'" in text and not _SPECIAL.intersection(text)
        return f'"{text}"' if is_simpler else shlex.quote(text)
    shown = (
        character
        if character.isprintable() and character not in "'\\"
        else "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
        for character in text
    )
    return f"$'{''.join(shown)}'"


def selector_of(form: SearchForm, request: SearchRequest) -> str:
    """All that a search asks for as one SQL selector; empty where it asks for everything."""
    parts = [form.sql] if form.sql else []
    if form.tags:
        tags = parse_tags(form.tags).node
        if isinstance(tags, Tags) and tags.wanted is not None:
            parts.append(f"TAGS IN ({', '.join(map(_text, sorted(tags.wanted)))})")
    parts += [
        f"{_property(request.filter_properties[0])} = {_text(value.decode())}"
        for value in request.filter_values
    ]
    if request.keys:
        (key,) = request.keys
        tests = [
            f"{_property(name)} = {literal}"
            for name in request.properties
            for literal in _literals(key)
        ]
        parts.append(" OR ".join(tests))
    if len(parts) == 1:
        return parts[0]
    return " AND ".join(f"({part})" for part in parts)


def _property(name: str) -> str:
    return parse_property(name).text()


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literals(key: str) -> list[str]:
    """A key, and what it spells."""
    found = [_text(key)]
    if _NUMBER.fullmatch(key):
        found.append(key)
    if key.lower() in ("true", "false"):
        found.append(key.upper())
    return found


def _password_of(where: Where) -> str:
    return '"guest"' if where.user == "guest" else f'os.environ["{_PASSWORD}"]'


def _head(client: str, modules: list[str], where: Where, others: str) -> list[str]:
    names = sorted([*modules, *(["os"] if where.user != "guest" else [])])
    title = (
        f"What a search of the console finds, oldest first, and what comes after, with {client}."
    )
    standard = [*(f"import {name}" for name in names), ""] if names else []
    return [f'"""{title}"""', "", *standard, *others.split("\n")]


def _pika(where: Where, form: SearchForm, request: SearchRequest) -> str:
    selector = selector_of(form, request)
    arguments = [f'"x-stream-offset": {_pika_offset(form, request)}']
    if selector:
        arguments.append(f'"x-stream-sql": {selector!r}')
    modules = ["datetime"] if form.start == TIME else []
    lines = _head("pika", modules, where, "import pika")
    lines += [
        "",
        f"login = pika.PlainCredentials({where.user!r}, {_password_of(where)})",
        "where = pika.ConnectionParameters(",
        f"    {where.host.strip('[]')!r}, {where.amqp_port}, {where.vhost!r}, credentials=login",
        ")",
        "arguments = {",
        *(f"    {argument}," for argument in arguments),
        "}",
        "with pika.BlockingConnection(where) as connection:",
        "    channel = connection.channel()",
        "    channel.basic_qos(prefetch_count=100)  # streams ask for it",
        f"    messages = channel.consume({where.stream!r}, arguments=arguments)",
        "    for delivery, properties, body in messages:",
        '        print(properties.headers["x-stream-offset"], properties.headers, body)',
        "        channel.basic_ack(delivery.delivery_tag)",
    ]
    return "\n".join(lines)


def _pika_offset(form: SearchForm, request: SearchRequest) -> str:
    if form.is_live:
        return '"next"'
    if form.start == OFFSET:
        return str(request.offset)
    if form.start == TIME:
        seconds = (request.from_ms or 0) // 1000
        return f"datetime.datetime.fromtimestamp({seconds}, datetime.timezone.utc)"
    return '"first"'


def _rstream(where: Where, form: SearchForm, request: SearchRequest) -> str:
    selector = selector_of(form, request)
    values = _chunk_values(selector, request)
    names = ["Consumer", "ConsumerOffsetSpecification", "OffsetType"]
    if values is not None:
        names.append("FilterConfiguration")
    others = (
        f"from rstream import {', '.join(sorted(names))}\nfrom segments.message import MessageView"
    )
    if selector:
        others += "\nfrom segments.selector import parse_sql  # part of streamd"
    lines = _head("rstream", ["asyncio"], where, others)
    lines.append("")
    if selector:
        lines += [f"wanted = parse_sql({selector!r}).matcher()", ""]
    test = "if wanted.matches(raw):  # the server chooses chunks, not messages" if selector else ""
    indent = "        " if selector else "    "
    lines += [
        "",
        "async def on_message(raw, context):",
        *([f"    {test}"] if test else []),
        f"{indent}message = MessageView(raw)",
        f"{indent}print(context.offset, message.application_properties, message.body)",
        "",
        "",
        "async def main():",
        "    consumer = Consumer(",
        f"        {where.host.strip('[]')!r},",
        f"        {where.stream_port},",
        f"        vhost={where.vhost!r},",
        f"        username={where.user!r},",
        f"        password={_password_of(where)},",
        "    )",
        "    await consumer.start()",
        "    await consumer.subscribe(",
        f"        {where.stream!r},",
        "        on_message,",
        "        decoder=bytes,",
        "        offset_specification=ConsumerOffsetSpecification(",
        f"            {_rstream_offset(form, request)}",
        "        ),",
    ]
    if values is not None:
        lines.append(f"        filter_input=FilterConfiguration({values[0]!r}, None, {values[1]}),")
    lines += ["    )", "    await consumer.run()", "", "", "asyncio.run(main())"]
    return "\n".join(lines)


def _rstream_offset(form: SearchForm, request: SearchRequest) -> str:
    if form.is_live:
        return "OffsetType.NEXT, None"
    if form.start == OFFSET:
        return f"OffsetType.OFFSET, {request.offset}"
    if form.start == TIME:
        return f"OffsetType.TIMESTAMP, {request.from_ms}"
    return "OffsetType.FIRST, None"


def _chunk_values(selector: str, request: SearchRequest) -> tuple[list[str], bool] | None:
    """Filter values of the chunks that may hold a match, and whether messages without one may be.

    None where they cannot be narrowed, or not in words of this client.
    """
    names = request.filter_properties
    if not selector or not names:
        return None
    try:
        asked = parse_selector("union", selector).push_down(names, is_strict=request.is_strict)
    except SelectorError:
        return None
    if not asked.values or len(asked.values) > MAX_VALUES:
        return None
    try:
        return sorted(value.decode() for value in asked.values), asked.match_unfiltered
    except UnicodeDecodeError:
        return None
