"""The JAX backend of the learner."""
