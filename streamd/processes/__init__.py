"""The processes of a server: the parent, the engine, and the doors beside it."""
