"""The server's side of the tier: who writes into the store, what, and when."""
