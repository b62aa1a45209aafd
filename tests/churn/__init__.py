"""Many clients at once that create, use and delete the same few things; each answer is judged."""
