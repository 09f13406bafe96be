"""A run on the second of two fake devices, on Keras's backend: `python -m tests.support.second_device FOLDER`.

Prints JSON: the names of what is on another device, by what it is; and the devices that weights are read from.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys

import keras

import actor_learner as al
from actor_learner import build
from actor_learner.learner import backend
from tests.support.trajectories import TWO_ACTIONS

ON_JAX = keras.backend.backend() == "jax"
SECOND = "/CPU:1"


def choose_the_second():
    """Let every name of a device stand for the second one, of two that share the CPU. XLA_FLAGS gives JAX two."""
    if not ON_JAX:
        import tensorflow as tf

        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
        backend.use_xla = lambda *arguments: False
    backend.resolve_device = lambda *arguments: SECOND
    sys.modules[backend.gpu_names.__module__].resolve_device = backend.resolve_device


def place_of(tensor):
    return f"/CPU:{min(one.id for one in tensor.devices())}" if ON_JAX else f"/{tensor.device.rpartition('device:')[2]}"


def elsewhere(variables):
    return [variable.path for variable in variables if place_of(variable.value) != SECOND]


def variables_of(learner):
    models = [learner.network, *getattr(learner, "critics", ())]
    return [*(variable for model in models for variable in model.variables), *learner._saved_variables().values()]


def no_copies():
    """A context in which JAX refuses to copy an array from one device to another."""
    if not ON_JAX:
        return contextlib.nullcontext()
    import jax

    return jax.transfer_guard_device_to_device("disallow")


def learn(config, folder, updates):
    """What is elsewhere of a learner after some updates, and of one that was loaded."""
    found = {}
    network = functools.partial(build.make_network, config, None)
    with build.make_pool(config, network, seed=0, logs_dir=None) as actors:
        found["network"] = elsewhere(actors.network.variables)
        learner = build.new_learner(config, actors)
        for _ in range(updates):
            with no_copies():
                learner.update(actors.collect())
                actors.publish(learner.flat_weights())
        found["learner"] = elsewhere(variables_of(learner))
        learner.save(folder)
        loaded = al.Learner.load(folder)
        found["loaded"] = elsewhere(variables_of(loaded))
    return found


def of_the_user():
    """What becomes of a network on the first device: moved, or refused with this message."""
    x = keras.Input((4,))
    network = keras.Model(x, (keras.layers.Dense(2)(x), keras.layers.Dense(1)(x)))
    assert len(elsewhere(network.variables)) == 4
    try:
        al.Learner(network, al.PPO(), action_space=TWO_ACTIONS)
    except ValueError as error:
        return str(error)
    return elsewhere(network.variables)


def main(folder):
    choose_the_second()
    read, to_numpy = set(), backend.to_numpy
    module = sys.modules[backend.vector_reader.__module__]

    def recorded(tensor):
        read.add(place_of(tensor))
        return to_numpy(tensor)

    module.to_numpy = backend.to_numpy = recorded
    options = {"num_actors": 0, "envs_per_actor": 2, "unroll_length": 16, "hidden_sizes": (8,), "quiet": True}
    ppo = al.TrainConfig(
        env="CartPole-v1",
        algorithm=al.PPO(minibatch_size=16, epochs=1, normalize_reward=True, desired_kl=0.01),
        normalize_observation=True,
        **options,
    )
    sac = al.TrainConfig(env="Pendulum-v1", algorithm=al.SAC(minibatch_size=8, learning_starts=1), **options)
    found = {
        "ppo": learn(ppo, os.path.join(folder, "ppo"), 2),
        "sac": learn(sac, os.path.join(folder, "sac"), 0),
        "read": sorted(read),
        "user": of_the_user(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
