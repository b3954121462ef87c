"""Code that several families of algorithms share."""
