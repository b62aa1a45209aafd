"""Who may enter, and what they may do: users, passwords, permissions, limits on guessing."""
