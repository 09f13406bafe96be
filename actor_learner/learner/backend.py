"""The learner's backend: the one module that names the folder that implements it.

Learner and update are `keras.ops` over these functions. A folder beside `tf/` with the same functions is another
backend. `state` names the variables that a function may assign: TensorFlow finds them itself, a backend whose programs
are pure functions can't.
"""

from actor_learner.learner.tf.compiled import (
    Compiled,
    choose,
    cond,
    device,
    gather,
    global_norm,
    gradients,
    half_square_sum,
    map_chunks,
    to_device,
    trace_once,
    while_loop,
)
from actor_learner.learner.tf.devices import (
    check_placement,
    multiplications,
    resolve_device,
    use_threads,
    use_xla,
    warn_of_threads,
)
from actor_learner.learner.tf.fused_adam import fuse
from actor_learner.learner.tf.readback import vector_reader
from actor_learner.learner.tf.rollback import Snapshot

__all__ = [
    "Compiled",
    "Snapshot",
    "check_placement",
    "choose",
    "cond",
    "device",
    "fuse",
    "gather",
    "global_norm",
    "gradients",
    "half_square_sum",
    "map_chunks",
    "multiplications",
    "resolve_device",
    "to_device",
    "trace_once",
    "use_threads",
    "use_xla",
    "vector_reader",
    "warn_of_threads",
    "while_loop",
]
