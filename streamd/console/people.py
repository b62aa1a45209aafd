"""What consumers are called."""

from streamd.engine.registry import ConsumerFacts, LiveConnection


def consumer_name(connection: LiveConnection, facts: ConsumerFacts) -> str:
    """The name that a consumer has given itself, or else where it is."""
    named = facts.properties.get("name") or facts.properties.get("identifier")
    return named or f"{connection.user}, {connection.peer}, subscription {facts.subscription_id}"
