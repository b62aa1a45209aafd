"""The catalog: what is declared, kept in one SQLite file."""
