"""Authentication and rights: users, passwords, permissions, limits on guessing."""
