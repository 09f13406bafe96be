"""From a trajectory batch to an update of a Keras network.

The only package that depends on Keras's backend (gradients, compilation, devices).
"""
