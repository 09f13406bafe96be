"""From a trajectory batch to an update of a Keras network."""
