"""Plain PyTorch modules: no Lightning, no files."""
