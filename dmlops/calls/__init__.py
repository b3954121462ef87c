"""Bound calls: how they are made, found again and run."""
