"""The commands of `python -m bench`."""
