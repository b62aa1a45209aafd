"""AMQP 1.0: frames, performatives and messages as bytes, and what a peer may do when.

No sockets, no clock, no event loop; the part of a server. Sources are named in each module.
"""
