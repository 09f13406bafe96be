"""Settings by environment id and algorithm; benchmarks/learning/learning.md has their results.

They start from SB3 Zoo's. They set the number of all environments, `num_envs`, so that up to lag 1 the number of
actors doesn't change what is learned (above, all actors have as many, and a rest is left out). Pendulum and
HalfCheetah use more environments with shorter unrolls, LunarLander shorter unrolls, which learn as well in less time
(HalfCheetah with the Zoo's discount and loss weights, and a step size and network of its own). DQN's learning rates
fall to 0, unlike the Zoo's: with constant ones, final weights are good or bad by chance.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from actor_learner.algorithms.off_policy.base import OffPolicy
from actor_learner.config.config import DEFAULT_NETWORK_FIELDS, TrainConfig
from actor_learner.config.references import algorithm_class, algorithm_reference
from actor_learner.system.fields import close_match


def _settings(total_steps: int, num_envs: int, unroll_length: int, **others: Any) -> dict[str, Any]:
    return {"total_steps": total_steps, "num_envs": num_envs, "unroll_length": unroll_length, **others}


_NORMALIZED = {"normalize_observation": True, "normalize_reward": True}
_MUJOCO = _settings(1_000_000, 8, 128, learning_rate="linear_4e-4", clip_range=0.1, initial_log_std=-1.0, **_NORMALIZED)
"""The settings for all of MuJoCo; the environments in `_MUJOCO_NAMES` have no measured results."""

_TIANSHOU = _settings(1_000_000, 16, 128, minibatch_size=64, epochs=10, learning_rate="linear_3e-4", vf_coef=0.25)
_TIANSHOU |= {"normalize_advantage": False, "initial_log_std": -0.5, **_NORMALIZED}
"""Tianshou's settings (examples/mujoco/mujoco_ppo.py), with 16 environments in place of 64, and with advantages that
aren't computed anew for each epoch (its `recompute_adv`)."""

_WALKING = {**_MUJOCO, "ent_coef": 0.0006, "vf_coef": 0.87, "max_grad_norm": 1.0}
_LUNAR_LANDER = _settings(1_000_000, 16, 256, epochs=4, gamma=0.999, gae_lambda=0.98, learning_rate="linear_1e-3")
_ATARI = _settings(10_000_000, 8, 128, minibatch_size=256, epochs=4, learning_rate="linear_2.5e-4")
_ATARI |= {"clip_range": "linear_0.1", "ent_coef": 0.01, "clip_reward": "sign", "env_kwargs": {"episodic_life": True}}

_MUJOCO_NAMES = "HumanoidStandup InvertedDoublePendulum InvertedPendulum Pusher Reacher".split()

_GRU = {"memory": "gru", "memory_size": 64}
_NO_VELOCITY = _settings(100_000, 8, 128, minibatch_size=256, learning_rate="linear_1e-3", **_NORMALIZED)
_NO_VELOCITY |= {**_GRU, "hidden_sizes": (64,)}


def _replay(total_steps: int, num_envs: int, unroll_length: int, **others: Any) -> dict[str, Any]:
    return _settings(total_steps, num_envs, unroll_length, hidden_sizes=(256, 256), **others)


_DQN_ZOO = {"learning_rate": "linear_6.3e-4", "minibatch_size": 128, "buffer_size": 50_000, "learning_starts": 0}
_DQN_ZOO |= {"updates_per_step": 1.0, "target_update_interval": 250}
_DQN_ZOO |= {"exploration_fraction": 0.12, "exploration_final_eps": 0.1}
_SAC_MUJOCO = _replay(1_000_000, 4, 8, learning_starts=10_000)

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "CartPole-v1": {
        "ppo": {
            **_settings(100_000, 8, 32, minibatch_size=256, epochs=20, gamma=0.98, gae_lambda=0.8),
            "learning_rate": "linear_1e-3",
            "clip_range": "linear_0.2",
        },
        "a2c": _settings(500_000, 8, 5),
        "impala": _settings(300_000, 16, 20, max_policy_lag=4, learning_rate="linear_2e-3", normalize_reward=True),
        "dqn": {
            **_replay(50_000, 8, 32, learning_rate="linear_2.3e-3", minibatch_size=64, buffer_size=100_000),
            "learning_starts": 1_000,
            "updates_per_step": 0.5,
            "target_update_interval": 10,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
        },
    },
    "Acrobot-v1": {
        "ppo": _settings(1_000_000, 16, 256, epochs=4, gae_lambda=0.94, **_NORMALIZED),
        "a2c": _settings(500_000, 16, 5, **_NORMALIZED),
        "dqn": {**_replay(100_000, 4, 8), **_DQN_ZOO},
    },
    "Pendulum-v1": {
        "ppo": _settings(100_000, 4, 512, gamma=0.9, learning_rate="linear_1e-3", normalize_reward=True),
        "sac": _replay(20_000, 4, 8, learning_rate=1e-3),
    },
    "LunarLander-v3": {
        "ppo": {**_LUNAR_LANDER, "ent_coef": 0.01},
        "dqn": {**_replay(100_000, 4, 8), **_DQN_ZOO},
        "impala": {
            **_settings(3_000_000, 16, 32, minibatch_size=128, max_policy_lag=4, gae_lambda=0.97, ent_coef=0.005),
            "optimizer": "adam",
            "learning_rate": "linear_1e-3",
            "normalize_advantage": True,
            **_NORMALIZED,
        },
    },
    "LunarLanderContinuous-v3": {"ppo": {**_LUNAR_LANDER, **_NORMALIZED}},
    "MountainCar-v0": {
        "ppo": _settings(1_000_000, 16, 64, epochs=4, gae_lambda=0.98, **_NORMALIZED),
        "dqn": {
            **_replay(120_000, 4, 8, learning_rate="linear_4e-3", minibatch_size=128, buffer_size=10_000, gamma=0.98),
            "learning_starts": 1_000,
            "updates_per_step": 0.5,
            "target_update_interval": 600,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
        },
    },
    "MountainCarContinuous-v0": {
        "ppo": _settings(100_000, 4, 256, gamma=0.999, noise_hold=16, **_NORMALIZED),
        "sac": {
            **_settings(50_000, 4, 8, minibatch_size=512, buffer_size=50_000, gamma=0.9999, tau=0.01),
            "learning_starts": 0,
            "ent_coef": 0.1,
            "hidden_sizes": (64, 64),
            "noise_hold": 16,
        },
    },
    "BipedalWalker-v3": {
        "sac": _replay(
            *(500_000, 4, 16),
            learning_rate=7.3e-4,
            buffer_size=300_000,
            gamma=0.98,
            tau=0.02,
            learning_starts=10_000,
        ),
        "ppo": _settings(
            5_000_000, 32, 512, minibatch_size=128, learning_rate="linear_5e-4", clip_range=0.18, **_NORMALIZED
        ),
    },
    "HalfCheetah-v5": {
        "sac": _SAC_MUJOCO,
        "ppo": {**_MUJOCO, "gamma": 0.98, "gae_lambda": 0.92, "ent_coef": 4e-4, "vf_coef": 0.58, "max_grad_norm": 0.8},
    },
    "Hopper-v5": {"ppo": _WALKING, "sac": _SAC_MUJOCO},
    "Walker2d-v5": {"ppo": _WALKING, "sac": _SAC_MUJOCO},
    "Swimmer-v5": {
        "ppo": _settings(
            1_000_000, 4, 1024, minibatch_size=256, gamma=0.9999, gae_lambda=0.98, learning_rate=6e-4, **_NORMALIZED
        )
    },
    # Contact forces, all 0 in Ant-v3, are three quarters of what Ant-v5 observes; PPO learns slower with them.
    "Ant-v5": {"ppo": {**_TIANSHOU, "env_kwargs": {"include_cfrc_ext_in_observation": False}}, "sac": _SAC_MUJOCO},
    "Humanoid-v5": {"ppo": _TIANSHOU},
    **{f"{name}-v5": {"ppo": _MUJOCO} for name in _MUJOCO_NAMES},
    "actor_learner/Catch-v0": {
        "ppo": {
            **_settings(30_000, 16, 32, minibatch_size=128, epochs=3, gamma=0.95, gae_lambda=0.9),
            "learning_rate": "linear_1e-3",
            "ent_coef": 0.01,
        }
    },
    "actor_learner/MaskedTreasure-v0": {
        "ppo": _settings(50_000, 16, 64, minibatch_size=256, epochs=6, learning_rate=2e-3, ent_coef=0.01)
    },
    "actor_learner/CartPoleNoVelocity-v0": {"ppo": {**_NO_VELOCITY, "clip_range": "linear_0.2"}},
    "actor_learner/PendulumNoVelocity-v0": {
        "ppo": {
            **_settings(100_000, 4, 512, gamma=0.9, learning_rate="linear_1e-3", normalize_reward=True),
            "noise_hold": 4,
            "sequence_length": 16,
            **_GRU,
            "hidden_sizes": (64,),
        }
    },
    "actor_learner/MountainCarContinuousNoVelocity-v0": {
        "ppo": _settings(300_000, 4, 256, gamma=0.999, noise_hold=16, sequence_length=32, **_GRU, **_NORMALIZED)
    },
    "actor_learner/LunarLanderNoVelocity-v0": {
        "ppo": {
            **_settings(1_000_000, 16, 256, minibatch_size=512, gamma=0.995, learning_rate="linear_1e-3"),
            "ent_coef": 0.003,
            "sequence_length": 64,
            **_GRU,
            **_NORMALIZED,
        }
    },
    "actor_learner/Memory-v0": {
        "ppo": {
            **_settings(100_000, 16, 64, minibatch_size=256, epochs=4, learning_rate="linear_1e-3", ent_coef=0.01),
            **_GRU,
        },
        "impala": _settings(
            100_000, 16, 32, max_policy_lag=4, learning_rate="linear_2e-3", ent_coef=0.01, memory="lstm", memory_size=64
        ),
    },
    "ALE/Pong-v5": {"ppo": {**_ATARI, "total_steps": 875_000, "epochs": 3, "learning_rate": 5e-4, "clip_range": 0.1}},
    "ALE/*": {
        "ppo": _ATARI,
        "dqn": {
            # A column of 64 rows holds 70 frames, one of 4 holds 10: the buffer would be 2.3 times as large.
            **_settings(10_000_000, 2, 64, learning_rate=1e-4, buffer_size=100_000, learning_starts=100_000),
            "target_update_interval": 1_000,
            "exploration_final_eps": 0.01,
            "clip_reward": "sign",
            "env_kwargs": {"episodic_life": True},
        },
    },
    "MinAtar/*": {
        "dqn": {
            **_settings(1_000_000, 8, 8, learning_rate="linear_5e-4", buffer_size=100_000, learning_starts=5_000),
            "updates_per_step": 0.5,
            "target_update_interval": 1_000,
            "exploration_final_eps": 0.02,
            "double": True,
        },
        "ppo": _settings(
            5_000_000, 64, 128, minibatch_size=512, epochs=4, learning_rate="linear_2.5e-3", ent_coef=0.01
        ),
        "impala": {
            **_settings(5_000_000, 32, 32, minibatch_size=512, max_policy_lag=4, ent_coef=0.01),
            "optimizer": "adam",
            "learning_rate": "linear_3e-3",
            "normalize_advantage": True,
        },
    },
}
"""Environment -> algorithm -> flat fields. An id that ends in `*` covers all ids with that prefix."""


def preset(env: str, **changes: Any) -> TrainConfig:
    """Return the preset for `env`, with `changes` to fields of the config or of its algorithm, flat.

    Keys of `env_kwargs` are changed one by one; the others keep what the preset says.

    `algorithm` may be a name ("a2c"), which takes that algorithm's preset, or an instance, which is used as it is, with
    the preset's other fields. A `network` or `init_from` replaces the preset's settings of the default network.

    Raises ValueError for an environment without a preset, and for unknown fields.

    Example:
        >>> import actor_learner as al
        >>> config = al.preset("CartPole-v1", learning_rate=3e-4, num_actors=4)
    """
    algorithm = changes.get("algorithm") or "ppo"
    fields = preset_fields(env, algorithm)
    if fields is None:
        raise unknown_preset(env, algorithm)
    return TrainConfig.from_fields({"env": env, **over_preset(fields_below(fields, changes), changes)})


def preset_fields(preset: object, algorithm: object = "ppo", env: object = None) -> dict[str, Any] | None:
    """Return the fields that the preset of an environment sets, flat, or None if there is none.

    A subclass of an algorithm takes the preset of its nearest ancestor that has one. An instance of an on-policy one
    without a preset takes PPO's, for its fields of the config. Another environment `env` gets the
    preset's `env_kwargs` only if its own preset has the same ones: others may not take them.
    """
    by_algorithm = _by_algorithm(preset) if isinstance(preset, str) else {}
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else type(algorithm)
    names = [*map(algorithm_reference, kind.__mro__)]
    if not isinstance(algorithm, str | OffPolicy):
        names.append("ppo")
    fields = next((by_algorithm[name] for name in names if name in by_algorithm), None)
    if fields is None or env in (None, preset):
        return fields
    own = preset_fields(env, algorithm) or {}
    same = own.get("env_kwargs") == fields.get("env_kwargs")
    return {name: value for name, value in fields.items() if same or name != "env_kwargs"}


def _by_algorithm(env: str) -> dict[str, dict[str, Any]]:
    """Return the presets of an environment by algorithm: its own over those of its prefix.

    An id without a version is that of the newest one with a preset.
    """
    versions = [name for name in PRESETS if re.fullmatch(re.escape(env) + r"-v\d+", name)]
    env = max(versions, key=lambda name: int(name.rpartition("-v")[2]), default=env)
    prefixes = (name for name in PRESETS if name.endswith("*") and env.startswith(name[:-1]))
    return {**PRESETS.get(next(prefixes, ""), {}), **PRESETS.get(env, {})}


def fields_below(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that still count below `changes`.

    A network replaces the fields of the default network, an algorithm's instance all hyperparameters,
    `envs_per_actor` the number of all environments, an optimizer its learning rate and its clipping, and no memory what
    only matters to one.
    """
    dropped: set[str] = set()
    if changes.get("envs_per_actor") is not None:
        dropped = {"num_envs"}
    if changes.get("memory", "the preset's") is None:
        dropped |= {"memory_size", "sequence_length", "burn_in"}
    if changes.get("network") is not None or changes.get("init_from") is not None:
        dropped |= {*DEFAULT_NETWORK_FIELDS}
    if not isinstance(changes.get("optimizer"), str | None):
        dropped |= {"learning_rate", "max_grad_norm"}
    if not isinstance(changes.get("algorithm"), str | None):
        dropped |= fields.keys() - {field.name for field in dataclasses.fields(TrainConfig)}
    return {name: value for name, value in fields.items() if name not in dropped}


def over_preset(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `changes` over a preset's fields, with the keys of both `env_kwargs`."""
    merged = {**fields, **changes}
    if fields.get("env_kwargs") and isinstance(merged["env_kwargs"], Mapping):
        merged["env_kwargs"] = {**fields["env_kwargs"], **merged["env_kwargs"]}
    return merged


def unknown_preset(env: object, algorithm: object) -> ValueError:
    """Return the error for an environment without a preset, with the close match and all environments with one."""
    known = [name for name in PRESETS if preset_fields(name, algorithm) is not None]
    label = algorithm if isinstance(algorithm, str) else type(algorithm).__name__
    return ValueError(
        f"There is no preset of this name for {label}{close_match(str(env), known)}; there are "
        f"{', '.join(known) or 'none'}. Received: preset={env!r}"
    )
