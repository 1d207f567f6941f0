"""Routes, and the layers around them."""
