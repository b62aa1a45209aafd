"""How long acknowledgements are left to gather, before more is read from a client."""

_PLENTY_UNACKED = 128  # messages of a channel: below that its acknowledgements are read at once
_SECONDS_EACH = 1e-5  # that any client takes for a message
_MAX_PAUSE_SECONDS = 0.005


def ack_pause(num_unacked: int) -> float:
    """Seconds, while so many messages of a channel wait for an acknowledgement; 0 for none."""
    if num_unacked < _PLENTY_UNACKED:
        return 0.0
    return min(num_unacked * _SECONDS_EACH, _MAX_PAUSE_SECONDS)
