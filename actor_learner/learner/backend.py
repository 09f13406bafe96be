"""The learner's backend: the one module that names the folder that implements it.

The learner is `keras.ops` over these functions. A folder beside `tf/` with the same functions is another backend.
`state` lists the variables that a function may assign: TensorFlow finds them itself, but a backend whose programs are
pure functions can't.
"""

from actor_learner.learner.tf.compiled import Compiled as Compiled
from actor_learner.learner.tf.compiled import choose as choose
from actor_learner.learner.tf.compiled import cond as cond
from actor_learner.learner.tf.compiled import device as device
from actor_learner.learner.tf.compiled import gather as gather
from actor_learner.learner.tf.compiled import global_norm as global_norm
from actor_learner.learner.tf.compiled import gradients as gradients
from actor_learner.learner.tf.compiled import half_square_sum as half_square_sum
from actor_learner.learner.tf.compiled import map_chunks as map_chunks
from actor_learner.learner.tf.compiled import to_device as to_device
from actor_learner.learner.tf.compiled import to_numpy as to_numpy
from actor_learner.learner.tf.compiled import trace_once as trace_once
from actor_learner.learner.tf.compiled import while_loop as while_loop
from actor_learner.learner.tf.devices import check_placement as check_placement
from actor_learner.learner.tf.devices import multiplications as multiplications
from actor_learner.learner.tf.devices import resolve_device as resolve_device
from actor_learner.learner.tf.devices import use_threads as use_threads
from actor_learner.learner.tf.devices import use_xla as use_xla
from actor_learner.learner.tf.devices import warn_of_threads as warn_of_threads
from actor_learner.learner.tf.fused_adam import fuse as fuse
from actor_learner.learner.tf.readback import vector_reader as vector_reader
from actor_learner.learner.tf.rollback import Snapshot as Snapshot
