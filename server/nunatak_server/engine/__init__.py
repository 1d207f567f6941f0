"""The engine: the one thread that computes batches, and the device that it uses."""
