"""One live connection of each protocol, in trio, above the bytes of `streamd.wire`."""
