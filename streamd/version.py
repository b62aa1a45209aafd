"""The version of streamd."""

__version__ = "0.1.0"
