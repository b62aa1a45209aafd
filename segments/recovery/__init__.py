"""What opening a log finds in its folder, and what it does about it."""
