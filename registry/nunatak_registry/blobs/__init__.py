"""Blobs: content-addressed bytes in folders and object stores."""
