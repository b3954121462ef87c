"""Short rows, several of them per warp: rounds, and lanes for segments."""
