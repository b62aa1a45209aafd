"""From a selector's text to what the server is asked for."""

from clients.administration import Administration
from clients.errors import PreconditionFailed, refusal
from clients.filters import Declared, SelectorFilter, SelectorRequest
from segments.selector import NumberRule, parse_selector
from streamd.wire.stream import ResponseCode


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
        found = await _of_group(client, stream, asked)
    else:
        selector = parse_selector(*asked.kind_and_text())
        found = SelectorFilter(selector, stream, asked.filter_property)
    if found.follows:
        found.learn(await declared_by(client, stream))
    return found


async def declared_by(client: Administration, stream: str) -> Declared:
    """What a stream says about its filter values; nothing where the server does not tell.

    Raises:
        StreamDoesNotExist: there is no such stream.
        StreamNotAvailable: the server cannot say at the moment.
    """
    if not client.is_streamd:
        return Declared()
    (info,) = await client.describe(stream)
    if info.code == ResponseCode.STREAM_NOT_AVAILABLE:
        raise refusal(info.code, f"cannot read {stream}")
    return Declared.by(info.arguments)


async def number_rule(
    client: Administration, stream: str, filter_property: str | None
) -> NumberRule:
    """How values that are numbers are taken on a stream.

    Args:
        client: asks the server, which may be none that describes streams.
        stream: its name.
        filter_property: whose values are compared or given; None when a program finds them.

    Raises:
        StreamDoesNotExist: there is no such stream.
    """
    return (await declared_by(client, stream)).number_rule(filter_property)


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
    return SelectorFilter(selector, stream, None, asked.group, found.since)


def _precondition(reason: str) -> PreconditionFailed:
    return PreconditionFailed(ResponseCode.PRECONDITION_FAILED, reason)
