"""From a selector's text to what the server is asked for."""

from clients.administration import Administration
from clients.errors import PreconditionFailed
from clients.filters import SelectorFilter, SelectorRequest
from segments.selector import (
    EVERYTHING,
    NumberRule,
    names_in,
    parse_selector,
)
from streamd.wire.stream import ResponseCode

_PROPERTY, _CONTRACT = "stream-filter-property", "stream-filter-contract"


async def selector_filter(
    client: Administration, stream: str, asked: SelectorRequest
) -> SelectorFilter:
    """What a consumer with a selector asks for.

    Raises:
        ValueError: it is not a selector.
        PreconditionFailed: the group has registered none, or another one.
        StreamDoesNotExist: there is no such stream.
    """
    if asked.group:
        return await _of_group(client, stream, asked)
    selector = parse_selector(*asked.kind_and_text())
    declared, is_strict = asked.filter_property, False
    if declared is None and client.is_streamd:
        (info,) = await client.describe(stream)
        declared = info.arguments.get(_PROPERTY)
        is_strict = info.arguments.get(_CONTRACT) == "strict"
    names = () if declared is None else names_in(declared)
    basis = f"{stream} declares no filter property"
    if names:
        contract = "every message has it" if is_strict else "some messages may have none"
        basis = f"filter values are those of {names[0]}; {contract}"
    if names[1:]:
        basis += f"; chunks also tell the values of {' and of '.join(names[1:])}"
    return SelectorFilter(selector, selector.push_down(names, is_strict=is_strict), basis)


async def number_rule(
    client: Administration, stream: str, filter_property: str | None
) -> NumberRule:
    """What numbers are on a stream, to who reads or gives filter values.

    Args:
        client: asks the server, which may be none that describes streams.
        stream: its name.
        filter_property: whose values are compared or given; None when a program finds them.

    Raises:
        StreamDoesNotExist: there is no such stream.
    """
    if not client.is_streamd:
        return NumberRule.TEXT
    (info,) = await client.describe(stream)
    declared = info.arguments.get(_PROPERTY)
    if declared is None:
        return NumberRule.TEXT
    is_strict = info.arguments.get(_CONTRACT) == "strict"
    is_same = names_in(declared)[0] == filter_property
    return NumberRule.NO_VALUE if is_strict and is_same else NumberRule.EITHER


async def _of_group(client: Administration, stream: str, asked: SelectorRequest) -> SelectorFilter:
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
