"""What an object store costs a server, and what it is good for; see `__main__`."""
