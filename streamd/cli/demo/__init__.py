"""`streamd demo`: `command` is the command, the others are its parts."""
