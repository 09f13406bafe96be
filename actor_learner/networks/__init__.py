"""Keras networks: the default ones, the layers that they are made of, and the contract that any network keeps."""
