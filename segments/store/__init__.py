"""An object store and what a tier keeps there: names, manifests; the cache of what was read.

Nothing here knows an event loop or a clock. `object_store` alone talks to a store.
"""
