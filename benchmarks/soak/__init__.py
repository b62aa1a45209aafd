"""`make soak`: mixed load, kills, restarts and pauses; every message is checked by its content."""
