"""Array libraries: one file for each, and `detect`, which finds the library of an array.

No library is imported on the user's behalf: if a library made an array, it is already in `sys.modules`.
"""
