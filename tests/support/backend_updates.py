"""Updates of one backend, to be compared with another's: `python -m tests.support.backend_updates OUTPUT.npz CASE ...`.

Writes the weights before and after, the optimizer's variables and the metrics of each case. NumPy draws the first
weights, because the backends' random streams differ.
"""

from __future__ import annotations

import sys

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import actor_learner as al
from actor_learner.spaces.structure import action_structure
from actor_learner.system.keras_import import import_keras
from tests.support.trajectories import random_trajectory

import_keras()
import keras  # noqa: E402
from keras.src.utils.naming import reset_uids  # noqa: E402

from actor_learner.learner import batch as batches  # noqa: E402
from actor_learner.networks.contract import building_in  # noqa: E402
from actor_learner.networks.memory import Memories  # noqa: E402

BOUNDED = Box(-10, 10, (4,), np.float32)
IMAGE = Box(0, 255, (44, 44, 4), np.uint8)
NESTED = Dict(place=BOUNDED, kind=Discrete(3))
PLANE = Box(-1, 1, (2,), np.float32)
IN_PARTS = 1024
"""The numbers of a chunk with which small batches of observations are evaluated in parts, too."""

OFTEN = {"learning_starts": 0, "minibatch_size": 16, "updates_per_step": 0.05, "buffer_size": 2048}


def adamw_ema():
    return keras.optimizers.AdamW(1e-3, use_ema=True, global_clipnorm=0.5)


class Counting(keras.layers.Layer):
    """Counts its calls, in 64 bits, and scales by the count: it assigns wherever the network is called."""

    def build(self, input_shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int64", trainable=False)

    def call(self, x):
        self.calls.assign(self.calls + 1)
        return x * (1.0 + 0.01 * keras.ops.cast(self.calls, x.dtype))


def counting_network(observation_space, action_space, seed):
    x = keras.Input(observation_space.shape)
    h = keras.layers.Dense(16, "tanh")(Counting()(x))
    return keras.Model(x, (keras.layers.Dense(int(action_space.n))(h), keras.layers.Dense(1)(h)))


def regularized_network(observation_space, action_space, seed):
    x = keras.Input(observation_space.shape)
    head = keras.layers.Dense(int(action_space.n), activity_regularizer=keras.regularizers.L2(0.01))
    return keras.Model(x, (head(x), keras.layers.Dense(1)(x)))


class ValueOnly(al.PPO):
    """A loss that leaves the policy's head without a gradient."""

    def loss(self, outputs, rows):
        loss = keras.ops.mean(keras.ops.square(outputs["value"] - rows["return"]))
        return loss, {"value_loss": loss}


THREE = Discrete(3)


def case(algorithm, actions=THREE, seen=BOUNDED, *, steps=32, columns=8, updates=3, **network):
    """An observation space, an action space, options of the network, an algorithm, and sizes."""
    network = network if "make" in network else {"hidden_sizes": (16,), **network}
    return seen, actions, network, algorithm, steps, columns, updates


LIMITED = {"target_kl": 0.05, "clip_range_vf": 0.2, "learning_rate": "linear"}
DQN = {**OFTEN, "prioritized": True, "target_update_interval": 300}
CASES = {
    "mlp": case(lambda: al.PPO(minibatch_size=64, epochs=4, normalize_reward=True), Discrete(2), steps=64, updates=4),
    "normalization": case(
        lambda: al.PPO(minibatch_size=100, epochs=3, normalize_reward=True, **LIMITED),
        PLANE,
        steps=64,
        updates=5,
        normalize_observation=True,
    ),
    "dict and masks": case(lambda: al.PPO(minibatch_size=64, epochs=2), MultiDiscrete([3, 2]), NESTED),
    "impala, adamw": case(lambda: al.Impala(optimizer=adamw_ema()), steps=20, columns=32, updates=6),
    "unused": case(lambda: ValueOnly(optimizer=keras.optimizers.AdamW(1e-2, weight_decay=0.1), vf_coef=1.0)),
    "counting": case(lambda: al.PPO(minibatch_size=64, epochs=2), make=counting_network),
    "regularized": case(
        lambda: al.A2C(optimizer=keras.optimizers.SGD(0.01)), steps=8, columns=4, updates=2, make=regularized_network
    ),
    "memory": case(lambda: al.PPO(minibatch_size=64, epochs=2), memory="gru", memory_size=8, sequence_length=8),
    "pqn": case(lambda: al.PQN(minibatch_size=64, exploration_final_eps=0.5), layer_norm=True),
    "dqn": case(lambda: al.DQN(**DQN, double=True, n_step=3), updates=4, normalize_observation=True),
    "qrdqn": case(lambda: al.QRDQN(**DQN, quantiles=20), updates=4),
    "sac": case(lambda: al.SAC(**OFTEN), PLANE),
    "sac on choices": case(lambda: al.SAC(**OFTEN), hidden_sizes=(64, 64)),
    "td3": case(lambda: al.TD3(**OFTEN), PLANE),
    "iql": case(lambda: al.IQL(**OFTEN), PLANE),
    "tqc": case(lambda: al.TQC(**OFTEN, num_critics=3), PLANE, updates=1),
    "crossq": case(lambda: al.CrossQ(**OFTEN, critic_units=16), PLANE),
    "images": case(
        lambda: al.PPO(minibatch_size=None, epochs=1, optimizer=keras.optimizers.SGD(0.01)),
        Discrete(6),
        IMAGE,
        steps=8,
        columns=4,
        updates=1,
    ),
}


def draw_no_weights():
    """Let Keras's initializers give zeros in place of random numbers: JAX compiles each operation for each shape."""
    for kind in (keras.initializers.Orthogonal, keras.initializers.VarianceScaling):
        kind.__call__ = lambda self, shape, dtype=None, **_: keras.ops.zeros(shape, dtype)


def first_weights(network, rng):
    """Random weights of usual sizes; scales and counts stay as they are."""
    for weight in network.weights:
        shape = tuple(weight.shape)
        yield (
            rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))
            if len(shape) > 1
            else keras.ops.convert_to_numpy(weight)
        )


def with_final_observations(batch, space, seed):
    """The batch as a pool makes it: with the last observation of each column's last truncated episode."""
    rows = [np.flatnonzero(column) for column in batch.truncated.T]
    space.seed(seed)
    return batch._replace(
        observation=np.nan_to_num(batch.observation, posinf=0.0, neginf=0.0),
        final_row=np.array([found[-1] if found.size else -1 for found in rows], np.int32),
        final_observation=np.stack([space.sample() for _ in rows]),
    )


def with_states(batch, network, seed):
    """The batch as a pool makes it for a network with memory: with the states of columns in mid-episode."""
    start = np.concatenate([np.zeros((1, batch.valid.shape[1]), bool), batch.terminated | batch.truncated])
    rng = np.random.default_rng(seed)
    shapes = [(start.shape[1], *shape) for shape in Memories(network).shapes]
    return batch._replace(start=start, initial_state=tuple(rng.normal(size=s).astype(np.float32) for s in shapes))


def learn(name, arrays, prepare=None, part=lambda batch: batch, **options):
    """The learner after a case's updates, whose results are put into `arrays`.

    prepare: Called with the new learner. part: Returns what it learns of a batch.
    """
    observation_space, action_space, of_network, algorithm, steps, columns, updates = CASES[name]
    reset_uids()  # layers have the same names, which are in those of metrics, whatever was built before
    of_network = dict(of_network)
    make = of_network.pop("make", al.default_network)
    sequence_length = of_network.pop("sequence_length", None)
    algorithm = algorithm()
    of_network |= algorithm.network_options(action_structure(action_space))
    if isinstance(algorithm, al.algorithms.OffPolicy):
        options["observation_space"] = observation_space
    with building_in(of_network.pop("precision", None)):
        network = make(observation_space, action_space, seed=0, **of_network)
    network.set_weights(list(first_weights(network, np.random.default_rng(1))))
    save(arrays, f"{name}/before", network.get_weights())
    options |= {"total_steps": steps * columns * updates, "device": "cpu", "sequence_length": sequence_length}
    learner = al.Learner(network, algorithm, action_space=action_space, diagnose=True, **options)
    for number, critic in enumerate(getattr(learner, "critics", ())):
        critic.set_weights(list(first_weights(critic, np.random.default_rng(2 + number))))
    if prepare is not None:
        prepare(learner)
    undone = []
    for update in range(updates):
        batch = random_trajectory(
            action_space,
            steps=steps,
            columns=columns,
            seed=update,
            invalid_rate=0.1,
            observation_space=observation_space,
            masked="masks" in name,
        )
        if isinstance(algorithm, al.algorithms.OffPolicy):
            batch = batch._replace(observation=np.nan_to_num(batch.observation, posinf=0.0, neginf=0.0))
        if name == "counting":
            batch = with_final_observations(batch, observation_space, update)
        if sequence_length:
            batch = with_states(batch, learner.network, update)
        if name == "mlp" and update == 2:
            batch.behaviour_log_prob[3, 3] = np.nan
            batch.valid[3, 3] = True
        metrics = learner.update(part(batch))
        undone.append(len(learner.not_finite))
        arrays |= {f"{name}/metrics/{update}/{key}": np.float64(value) for key, value in metrics.items()}
    arrays[f"{name}/undone"] = np.array(undone)
    save(arrays, f"{name}/after", learner.get_weights())
    save(arrays, f"{name}/optimizer", [keras.ops.convert_to_numpy(value) for value in learner.optimizer.variables])
    return learner


def main(output, *names):
    arrays = {}
    draw_no_weights()
    batches.CHUNK_NUMBERS = IN_PARTS
    for name in names:
        learn(name, arrays)
    np.savez(output, **arrays)


def save(arrays, name, values):
    arrays |= {f"{name}/{index}": np.asarray(value) for index, value in enumerate(values)}


if __name__ == "__main__":
    main(*sys.argv[1:])
