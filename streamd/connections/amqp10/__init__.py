"""AMQP 1.0: streams as nodes that links write to and read from."""
