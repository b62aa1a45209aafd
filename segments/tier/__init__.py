"""A log and its tier: what is to be sent in what form, and what a reader needs on the disk.

Nothing here knows an event loop or a clock.
"""
