"""Acting: `policy` runs an exported network without TensorFlow; `export` makes it from a Keras one."""
