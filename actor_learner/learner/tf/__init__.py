"""The TensorFlow backend of the learner."""
