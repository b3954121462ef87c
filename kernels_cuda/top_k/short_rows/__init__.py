"""Short rows, one or several of them per warp: rounds, and warp with lanes."""
