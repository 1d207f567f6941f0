"""Cards: versions as people read them."""
