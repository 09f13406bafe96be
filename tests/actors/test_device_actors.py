"""Environments in JAX on the learner's device, by device_checks.py in a process whose Keras runs on JAX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import actor_learner as al
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.spaces.jax_env import names_jax_env, steps_on_device
from actor_learner.system.installation import install_command
from tests.support.processes import patience
from tests.support.quick_xla import QUICK_XLA

CHECKS = Path(__file__).with_name("device_checks.py")


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
@pytest.mark.parametrize("part", ["learn", "not learn"])
def test_environments_in_jax_are_stepped_on_the_device(part, tmp_path):
    """Many pools have the same programs, which JAX's cache saves compiling again."""
    flags = f"{QUICK_XLA} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    words = ["-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-k", part, str(CHECKS)]
    words += ["--timeout", str(patience(500))]
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=patience(560), check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_names_of_environments_in_jax_have_a_library_before_the_colon():
    assert names_jax_env("gymnax:CartPole-v1")
    assert names_jax_env("jax:module:name")
    assert not any(map(names_jax_env, ("CartPole-v1", "envpool:Pong-v5", "jax", "minigrid:MiniGrid-Empty-5x5-v0")))
    assert steps_on_device("brax:ant", "auto")
    assert not steps_on_device("brax:ant", "sync")


def test_a_missing_library_is_named_with_its_extra():
    if find_spec("gymnax"):
        pytest.skip("gymnax is installed")
    install = re.escape(install_command("actor-learner[gymnax]"))
    with pytest.raises(EnvError, match=f"needs the package `gymnax`: {install}. Received: env='gymnax:CartPole-v1'"):
        resolve_env("gymnax:CartPole-v1")


def test_tensorflow_takes_environments_in_jax_in_actors_alone():
    with pytest.raises(ValueError, match="An environment in JAX needs JAX .*vectorization='sync'"):
        al.TrainConfig(env="gymnax:CartPole-v1")
    config = al.TrainConfig(env="gymnax:CartPole-v1", vectorization="sync")
    assert config.num_actors == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
def test_actors_step_environments_in_jax_for_tensorflow():
    name = "jax:tests.support.jax_envs:Walk"
    with al.ActorPool(name, vectorization="sync", num_actors=1, num_envs=3, unroll_length=8) as actors:
        batch = actors.collect()
        assert batch.observation.shape == (9, 3, 2)
        assert batch.truncated.any() or batch.terminated.any()
