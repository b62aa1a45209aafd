"""From what a selector asks for to the chunks that readers take."""

from segments.bloom import ChunkMatcher
from segments.property_keys import PropertyFilter
from segments.selector import Pushdown


def matcher_of(asked: Pushdown) -> ChunkMatcher | None:
    """The chunks that are asked for; None for all."""
    if asked.is_empty:
        return ChunkMatcher(())
    if asked.values is None and not asked.properties:
        return None
    properties = [PropertyFilter(*wish) for wish in asked.properties]
    return ChunkMatcher(
        asked.values, match_unfiltered=asked.match_unfiltered, properties=properties
    )
