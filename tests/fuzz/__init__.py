"""What breaks the server? Conversations with clients, recorded, changed and sent again."""
