"""Short rows, several of them per warp: rounds (and shared_rounds), and lanes for segments."""
