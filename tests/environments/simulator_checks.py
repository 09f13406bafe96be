"""Checks of the adapters with the simulators themselves, each in a virtual environment of its own: scripts/simulators.

They need Keras on JAX, and check the library that the variable SIMULATOR names.
"""

from __future__ import annotations

import contextlib
import os

import jax
import numpy as np
import pytest

import actor_learner as al
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.jax.source import find_jax_env

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries'

LIMIT = 5
CASES = [
    "gymnax:CartPole-v1",
    "gymnax:Breakout-MinAtar",
    "gymnax:Pendulum-v1",
    "brax:inverted_pendulum",
    "playground:CartpoleBalance",
    "playground:CheetahRun",
    "jumanji:Snake-v1",
    "jumanji:Game2048-v1",
    "craftax:Craftax-Classic-Symbolic-v1",
]
CUT_OFF = {
    "gymnax:CartPole-v1": {},
    "brax:inverted_pendulum": {"episode_length": LIMIT},
    "playground:CartpoleBalance": {"episode_length": LIMIT},
    "craftax:Craftax-Classic-Symbolic-v1": {"max_timesteps": LIMIT},
}
"""Arguments that cut off episodes after `LIMIT` steps."""
RENDERED = ["brax:inverted_pendulum", "playground:CartpoleBalance"]


def needs(name):
    library = name.partition(":")[0]
    if library != os.environ["SIMULATOR"]:
        pytest.skip(f"it is of {library}")


@pytest.mark.parametrize("name", CASES)
def test_observations_are_in_the_space_and_batches_finite(name):
    needs(name)
    with al.ActorPool(name, num_envs=4, unroll_length=12, seed=1) as actors:
        batch = actors.collect().copy()
    assert batch.valid.all()
    leaves = jax.tree.leaves(batch.observation)
    assert all(np.isfinite(leaf.astype(np.float64)).all() for leaf in leaves)
    env = find_jax_env(name, {}).make({})
    _, observation = jax.jit(env.reset)(jax.random.key(0))
    space = env.observation_space
    assert jax.tree.map(np.shape, observation) == jax.tree.map(np.shape, space.sample())


def cut_off(name):
    """Return an environment whose episodes are cut off after `LIMIT` steps."""
    if not name.startswith("gymnax:"):
        return find_jax_env(name, {}).make(CUT_OFF[name])
    import gymnax

    env, params = gymnax.make(name.partition(":")[2])
    return al.jax_envs.Gymnax(env, params.replace(max_steps_in_episode=LIMIT))


@pytest.mark.parametrize("name", CUT_OFF)
def test_an_episode_that_is_cut_off_is_truncated_and_keeps_its_last_observation(name):
    needs(name)
    env, endless = cut_off(name), find_jax_env(name, {}).make({})
    of_cut, of_endless = jax.jit(env.step), jax.jit(endless.step)
    state, observation = jax.jit(env.reset)(jax.random.key(0))
    other, same = jax.jit(endless.reset)(jax.random.key(0))
    assert_equal(observation, same)
    action = np.asarray(env.action_space.sample()) * 0
    for number in range(LIMIT):
        stepped = of_cut(jax.random.key(number), state, action)
        longer = of_endless(jax.random.key(number), other, action)
        assert not bool(stepped.terminated)
        assert bool(stepped.truncated) == (number == LIMIT - 1)
        assert not bool(longer.truncated)
        assert_equal(stepped.observation, longer.observation)  # those of an episode that goes on
        state, other = stepped.state, longer.state


def assert_equal(these, others):
    jax.tree.map(lambda this, other: np.testing.assert_allclose(this, other, rtol=1e-5, atol=1e-6), these, others)


@pytest.mark.parametrize("name", ["jumanji:Snake-v1", "jumanji:Game2048-v1"])
def test_masks_of_jumanji_forbid_actions(name):
    needs(name)
    with al.ActorPool(name, num_envs=4, unroll_length=32, seed=1) as actors:
        batch = actors.collect().copy()
    mask = batch.action_mask[:-1]
    assert not mask.all()
    assert np.take_along_axis(mask, batch.action[..., None].astype(int), -1).all()


@pytest.mark.parametrize("name", RENDERED)
def test_pictures_are_drawn(name):
    needs(name)
    import mujoco

    try:
        mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"))
    except Exception as error:
        pytest.skip(f"no OpenGL here: {error}")
    with contextlib.closing(resolve_env(name).source(1, 0, "rgb_array")) as env:
        env.reset(seed=0)
        picture = env.render()[0]
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.std() > 0


@pytest.mark.parametrize("name", ["gymnax:CartPole-v2", "brax:antt", "jumanji:Snake", "craftax:Craftax"])
def test_unknown_ids_are_one_line(name):
    needs(name)
    with pytest.raises(EnvError, match=f"has no `{name.partition(':')[2]}`"):
        al.ActorPool(name, num_envs=4)


@pytest.mark.parametrize("name", ["gymnax:CartPole-v1", "brax:inverted_pendulum", "jumanji:Snake-v1"])
def test_ordinary_actors_step_the_same_environment(name):
    needs(name)
    with al.ActorPool(name, vectorization="sync", num_actors=1, num_envs=2, unroll_length=8) as actors:
        assert actors.collect().reward.shape == (8, 2)
