"""Kernels: products, attention and memory as a device does them best."""
