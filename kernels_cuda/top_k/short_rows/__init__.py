"""Short rows in registers, several of them or one per warp: rounds and warp."""
