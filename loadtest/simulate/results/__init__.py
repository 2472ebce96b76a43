"""Results of a run: figures, tables, pages, pictures."""
