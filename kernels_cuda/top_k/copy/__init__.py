"""All of each row, by index."""
