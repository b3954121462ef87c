"""What several families of algorithms have in common."""
