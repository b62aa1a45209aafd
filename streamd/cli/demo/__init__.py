"""`streamd demo`: the command is in `command`, its parts are in the other modules."""
