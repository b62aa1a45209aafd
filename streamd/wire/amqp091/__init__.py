"""AMQP 0-9-1 without sockets: values, methods, frames, states, and messages as streams keep them.

`Connection` turns bytes into requests and messages; the package `messages` turns messages into
AMQP 1.0 and back.
"""
