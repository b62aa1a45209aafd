"""RocketMQ's tag expressions: `a || b`, `*` for every message.

Source: apache/rocketmq,
remoting/src/main/java/org/apache/rocketmq/remoting/protocol/filter/FilterAPI.java and
remoting/src/main/java/org/apache/rocketmq/remoting/protocol/heartbeat/SubscriptionData.java.
"""

from segments.selector.dialects import MAX_CHARACTERS
from segments.selector.errors import SelectorError
from segments.selector.nodes import Tags
from segments.selector.values import BLANKS

_EVERY = "*"
_BAR = "||"


def parse(text: str) -> Tags:
    """The tags that an expression names.

    Raises:
        SelectorError: it names none, or is too long.
    """
    if len(text) > MAX_CHARACTERS:
        reason = f"{len(text)} characters, at most {MAX_CHARACTERS} are allowed"
        raise SelectorError(reason, text, MAX_CHARACTERS, MAX_CHARACTERS + 1)
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise SelectorError("half a character, which no tag holds", text, 0, len(text))
    if text in ("", _EVERY):
        return Tags(None, span=(0, len(text)))
    wanted = frozenset(filter(None, (tag.strip(BLANKS) for tag in text.split(_BAR))))
    if not wanted:
        reason = "no tag is named; write tags with || between them, or * for every message"
        raise SelectorError(reason, text, 0, len(text))
    return Tags(wanted, span=(0, len(text)))
