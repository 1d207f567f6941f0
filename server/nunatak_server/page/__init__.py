"""The web page: plain files that need no build step and nothing from elsewhere."""
