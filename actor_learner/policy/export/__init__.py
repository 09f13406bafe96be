"""From a Keras network to a LiteRT graph."""
