"""Reference pages, written from the code that they describe."""
