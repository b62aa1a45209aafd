"""Between a door and the engine: operations and their answers as bytes over a private socket."""
