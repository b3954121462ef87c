"""The two devices: what a plan needs to run on each."""
