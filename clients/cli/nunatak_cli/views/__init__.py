"""Results as rich renderables and as JSON values; no command line, no input or output."""
