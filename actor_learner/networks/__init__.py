"""Keras networks: the contract that every network keeps, the default network, its layers, and files of networks."""
