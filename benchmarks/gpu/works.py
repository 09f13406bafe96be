"""What is measured: networks by name, precisions by name, and the works of the whole pipeline."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

import actor_learner as al

STEPS = 32  # of a batch; its columns are its rows divided by these
ACTING_ROWS = 64
EPOCHS = 4

_FRAMES: Space[Any] = Box(0, 255, (84, 84, 4), np.uint8)


class Precision(NamedTuple):
    """The precision that layers compute in, and whether products of float32 may use TensorFloat-32."""

    title: str
    layers: str
    tf32: bool


PRECISIONS = {
    "float32": Precision("float32", "float32", False),
    "bfloat16": Precision("bfloat16", "bfloat16", False),
    "tf32": Precision("TF32", "float32", True),
}


@dataclass(frozen=True)
class NetworkWork:
    """The spaces of a network, the options of `al.default_network`, and the precisions that are worth their time."""

    title: str
    observation: Space[Any]
    action: Space[Any]
    options: dict[str, Any] = field(default_factory=dict)
    precisions: tuple[str, ...] = tuple(PRECISIONS)


NETWORKS = {
    "nature": NetworkWork("Nature, 84x84x4", _FRAMES, Discrete(6), {"image_network": "nature"}),
    "mlp": NetworkWork("MLP (64, 64)", Box(-np.inf, np.inf, (17,), np.float32), Box(-1, 1, (6,), np.float32)),
    "impala": NetworkWork("IMPALA, 84x84x4", _FRAMES, Discrete(6), {"image_network": "impala"}, ("bfloat16",)),
}


@dataclass(frozen=True)
class PipelineWork:
    """An environment for the whole pipeline: 64 of it, however many actors share them, or so many for each actor."""

    env: str
    unroll_length: int
    minibatch_size: int

    def config(self, **fields: Any) -> al.TrainConfig:
        """Return the config of a run one batch ahead. fields: of the config, over its own, unless they are None."""
        fields = {name: value for name, value in fields.items() if value is not None}
        algorithm = al.PPO(minibatch_size=self.minibatch_size, epochs=EPOCHS)
        own = {"unroll_length": self.unroll_length, "max_policy_lag": 1, "quiet": True}
        own |= {} if "envs_per_actor" in fields else {"num_envs": ENVS}
        return al.TrainConfig(env=self.env, algorithm=algorithm, **{**own, **fields})

    def tiny(self) -> Self:
        """Return the same work with the shortest batch that has two minibatches."""
        return replace(self, unroll_length=2, minibatch_size=ENVS)


ENVS = 64
PIPELINES = {
    "cartpole": PipelineWork("CartPole-v1", 64, 512),
    "halfcheetah": PipelineWork("HalfCheetah-v5", 64, 512),
    "pong": PipelineWork("ALE/Pong-v5", 32, 512),
}
ACTORS = [15, 8, 16]  # the first leaves one of 16 cores to the learner


def add_pipeline_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of other settings of the pipeline, of which an archive needs exports."""
    parser.add_argument("--precision", choices=PRECISIONS, help="of the pipeline's learner (default: by rule)")
    text = f"environments of each actor of the pipeline (default: a share of {ENVS})"
    parser.add_argument("--envs-per-actor", type=int, metavar="N", help=text)


def make_network(name: str, precision: str) -> Any:
    """Return a network of `NETWORKS`, whose heads are 100 times as large: a policy that is sure of something."""
    import keras

    from actor_learner.networks.contract import building_in

    keras.utils.clear_session()  # names of layers begin anew, and so does the name of the cached export
    work = NETWORKS[name]
    with building_in(PRECISIONS[precision].layers):
        network = al.default_network(work.observation, work.action, **work.options, seed=0)
    for head in ("mean", "logits"):
        if any(layer.name == head for layer in network.layers):
            kernel = network.get_layer(head).kernel
            kernel.assign(100 * kernel.value)
    return network


def make_policy(name: str, network: Any) -> al.Policy:
    """Return the policy that an actor has of a network of `NETWORKS`."""
    work = NETWORKS[name]
    return al.Policy.from_network(network, work.action, batch_size=ACTING_ROWS, observation_space=work.observation)


def make_batch(name: str, rows: int, seed: int) -> al.Trajectory:
    """Return random rows of a network's spaces, `STEPS` steps of each column; one episode in a hundred steps ends."""
    work, columns = NETWORKS[name], rows // STEPS
    rng, shape = np.random.default_rng(seed), (STEPS, columns)
    return al.Trajectory(
        observation=random_observations(work.observation, (STEPS + 1, columns), rng),
        action=_random_actions(work.action, shape, rng),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=rng.random(shape) < 0.01,
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        behaviour_log_prob=np.full(shape, -1.0, np.float32),
        truncation_value=np.zeros(shape, np.float32),
        policy_version=np.zeros(columns, np.int64),
        env_index=np.arange(columns, dtype=np.int32),
    )


def random_observations(space: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Return random observations `[*shape, *space.shape]`: bytes, or normal numbers."""
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (*shape, *space.shape), np.uint8)
    return rng.normal(size=(*shape, *space.shape)).astype(space.dtype)


def _random_actions(space: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if isinstance(space, Discrete):
        return rng.integers(0, int(space.n), shape)
    return rng.uniform(-1, 1, (*shape, *space.shape)).astype(space.dtype)
