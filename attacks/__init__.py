"""The science as pure functions of tensors: no files, no Lightning, no training data."""
