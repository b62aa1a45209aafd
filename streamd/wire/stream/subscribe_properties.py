"""The words of a Subscribe's properties, for both ends.

The first group is RabbitMQ's. The second is this project's: requests beyond a list of filter
values, and standing selectors. A server that does not know these words ignores them and sends more.
"""

from typing import Final

TRUE: Final = "true"

NAME: Final = "name"
FILTER_PREFIX: Final = "filter."  # one property for each filter value, with any ending
MATCH_UNFILTERED: Final = "match-unfiltered"
SINGLE_ACTIVE: Final = "single-active-consumer"
SUPER_STREAM: Final = "super-stream"

FILTER_MODE: Final = "filter-mode"
UNFILTERED_ONLY: Final = "unfiltered-only"  # a mode: chunks with messages without a filter value
NOTHING: Final = "nothing"  # a mode: no chunk, as no message can match
SELECTOR: Final = "selector"  # its text; the server looks at it only with a group
SELECTOR_GROUP: Final = "selector-group"
