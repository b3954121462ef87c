"""Compare dmlops with other libraries: `python -m bench`, in a clone of the repository."""
