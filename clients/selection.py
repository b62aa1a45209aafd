"""From a selector's text to what is asked of the server."""

from typing import TYPE_CHECKING, NamedTuple

from clients.errors import PreconditionFailed
from clients.filters import SelectorFilter
from segments.selector import (
    EVERYTHING,
    TAGS,
    Dialect,
    Property,
    parse_property,
    parse_selector,
)
from streamd.wire.stream import ResponseCode

if TYPE_CHECKING:
    from clients.administration import Administration

_PROPERTY, _CONTRACT = "stream-filter-property", "stream-filter-contract"


class StandingSelector(NamedTuple):
    """A selector that a group has registered with a stream.

    Attributes:
        group: the name of the consumers that share it.
        dialect: union, rocketmq or amqp for SQL; tags for a tag expression.
        text: the selector, canonical.
        since: chunks from this offset on are passed over when they hold no match.
        consumers: of the group that are reading.
    """

    group: str
    dialect: str
    text: str
    since: int
    consumers: int


class SelectorRequest(NamedTuple):
    """What a program says of the selector that it wants; see `Client.consumer`."""

    sql: str | None
    tags: str | None
    dialect: str = Dialect.UNION
    filter_property: str | None = None
    group: str = ""

    def kind_and_text(self) -> tuple[str, str]:
        """The dialect, or "tags", and the selector's text.

        Raises:
            ValueError: both kinds, or none.
        """
        if (self.sql is None) == (self.tags is None):
            raise ValueError("a selector is either SQL or tags")
        return (TAGS, self.tags or "") if self.sql is None else (self.dialect, self.sql)


async def selector_filter(
    client: "Administration", stream: str, asked: SelectorRequest
) -> SelectorFilter:
    """What a consumer with a selector asks for.

    Raises:
        ValueError: it is no selector.
        PreconditionFailed: the group has registered none, or another one.
        StreamDoesNotExist: there is no such stream.
    """
    if asked.group:
        return await _of_group(client, stream, asked)
    selector = parse_selector(*asked.kind_and_text())
    name, is_strict = asked.filter_property, False
    if name is None and client.is_streamd:
        (info,) = await client.describe(stream)
        name = info.arguments.get(_PROPERTY)
        is_strict = info.arguments.get(_CONTRACT) == "strict"
    declared: Property | None = None if name is None else parse_property(name)
    basis = f"{stream} declares no filter property"
    if name is not None:
        contract = "every message has it" if is_strict else "some messages may have none"
        basis = f"filter values are those of {name}; {contract}"
    return SelectorFilter(selector, selector.push_down(declared, is_strict=is_strict), basis)


async def _of_group(
    client: "Administration", stream: str, asked: SelectorRequest
) -> SelectorFilter:
    found = next((s for s in await client.selectors(stream) if s.group == asked.group), None)
    if found is None:
        raise _precondition(f"group {asked.group} has registered no selector with {stream}")
    selector = parse_selector(found.dialect, found.text)
    if not (asked.sql is None and asked.tags is None):
        kind, text = asked.kind_and_text()
        own = parse_selector(kind, text)
        if kind != found.dialect or own != selector:
            raise _precondition(
                f"group {asked.group} has registered {selector} ({found.dialect}), "
                f"a consumer comes with {own} ({kind}): all of a group share one selector"
            )
    basis = f"chunks from offset {found.since} on are marked for group {asked.group}"
    return SelectorFilter(selector, EVERYTHING, basis, asked.group)


def _precondition(reason: str) -> PreconditionFailed:
    return PreconditionFailed(ResponseCode.PRECONDITION_FAILED, reason)
