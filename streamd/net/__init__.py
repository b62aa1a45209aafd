"""One socket: bytes in, bytes out, whatever they mean."""
