"""Policies: `policy` acts with an exported network, without TensorFlow; `export` exports a Keras network."""
