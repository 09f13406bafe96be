"""Exports a Keras network to graphs that actors run, and to a Keras model for deployment."""
