"""The backbone: its shape, its frozen weights, and where they come from."""
