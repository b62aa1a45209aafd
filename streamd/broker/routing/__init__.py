"""Where messages go: exchanges, bindings, super streams."""
