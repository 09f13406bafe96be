"""The learner's backend: the one module that names the folder that implements it.

The learner is `keras.ops` over these functions. A folder beside `tf/` with the same functions is another backend.
`state` lists the variables that a function may assign: TensorFlow finds them itself, but a backend whose programs are
pure functions can't.
"""

from actor_learner.learner.tf.compiled import (
    Compiled as Compiled,
    choose as choose,
    cond as cond,
    device as device,
    gather as gather,
    global_norm as global_norm,
    gradients as gradients,
    half_square_sum as half_square_sum,
    map_chunks as map_chunks,
    to_device as to_device,
    to_numpy as to_numpy,
    trace_once as trace_once,
    while_loop as while_loop,
)
from actor_learner.learner.tf.devices import (
    check_placement as check_placement,
    is_small as is_small,
    multiplications as multiplications,
    resolve_device as resolve_device,
    use_threads as use_threads,
    use_xla as use_xla,
    warn_of_threads as warn_of_threads,
)
from actor_learner.learner.tf.fused_adam import fuse as fuse
from actor_learner.learner.tf.readback import vector_reader as vector_reader
from actor_learner.learner.tf.rollback import Snapshot as Snapshot
