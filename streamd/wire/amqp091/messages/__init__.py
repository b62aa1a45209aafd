"""Messages of AMQP 0-9-1 as streams keep them, in AMQP 1.0, and back."""
