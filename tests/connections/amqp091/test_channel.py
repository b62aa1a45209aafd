"""What a channel knows of its messages."""

from typing import Any
from unittest.mock import Mock, call

from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp091.channel import Channel
from streamd.connections.unacked import MOST_SETTLED, Unacked


def test_many_messages_are_settled_in_steps() -> None:
    """However many a client acknowledges at once."""
    consumer: Any = Mock(**{"stream.traffic.messages_acknowledged": 0})
    publisher: Any = None
    channel = Channel(1, Unacked(lambda: None, ProtocolTraffic()), publisher)
    channel.count_deliveries(consumer, 2 * MOST_SETTLED + 5)
    assert channel.settle(0, multiple=True) == MOST_SETTLED
    assert channel.settle_up_to(2 * MOST_SETTLED + 1) == MOST_SETTLED
    assert channel.settle_up_to(2 * MOST_SETTLED + 1) == 1
    assert consumer.settled.mock_calls == [call(MOST_SETTLED), call(MOST_SETTLED), call(1)]
    assert channel.num_unacked == 4
