"""The server's side of the tier: what is uploaded, fetched and removed when, and is told of it."""
