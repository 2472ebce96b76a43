"""What a run came to: figures, tables, pages, pictures."""
