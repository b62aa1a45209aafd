"""Sealed segments in an object store: what is there, and reading it.

Nothing here knows an event loop or a clock. `object_store` alone talks to a store.
"""
