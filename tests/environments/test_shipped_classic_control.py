"""CartPole, Pendulum, Acrobot and MountainCar in NumPy: equal to Gymnasium's own, step by step."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from actor_learner_envs import classic_control
from gymnasium.error import ResetNeeded
from hypothesis import given, settings, strategies as st

from actor_learner.environments.factory import resolve_env

IDS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"]
# Gymnasium's own numbers are squared by the C library's `pow` one by one, and by a product in arrays, which may differ
# in a float64's last bit; all that follows comes out the same to float32's precision.
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


class Reference:
    """`num_envs` single environments of Gymnasium's, with the interface of a vector environment."""

    def __init__(self, env_id, num_envs, **kwargs):
        self.envs = [gym.make(env_id, disable_env_checker=True, **kwargs) for _ in range(num_envs)]
        self.observation = [None] * num_envs

    def reset(self, seeds=None, mask=None, **options):
        for row, env in enumerate(self.envs):
            if mask is None or mask[row]:
                seed = None if seeds is None else seeds[row]
                self.observation[row], _ = env.reset(seed=seed, options=options or None)
        return np.stack(self.observation)

    def step(self, actions):
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        self.observation = [step[0] for step in steps]
        return np.stack(self.observation), *(np.array([step[part] for step in steps]) for part in (1, 2, 3))


def make(env_id, num_envs, **kwargs):
    return gym.make_vec(f"actor_learner/{env_id}", num_envs=num_envs, **kwargs)


def play(env_id, policy, *, num_envs, steps, seed=0, **kwargs):
    """Steps both with the same actions, compares them all the way, and returns how many episodes ended in which way."""
    ours, theirs = make(env_id, num_envs, **kwargs), Reference(env_id, num_envs, **kwargs)
    observation, _ = ours.reset(seed=seed)
    np.testing.assert_allclose(observation, theirs.reset(range(seed, seed + num_envs)), **CLOSE)
    terminations = truncations = both = 0
    for _ in range(steps):
        actions = policy(observation)
        observation, reward, terminated, truncated, infos = ours.step(actions)
        expected = theirs.step(actions)
        np.testing.assert_allclose(observation, expected[0], **CLOSE)
        np.testing.assert_allclose(reward, expected[1], **CLOSE)
        np.testing.assert_array_equal(terminated, expected[2])
        np.testing.assert_array_equal(truncated, expected[3])
        assert infos == {}
        terminations, truncations = terminations + terminated.sum(), truncations + truncated.sum()
        both += (terminated & truncated).sum()
        mask = terminated | truncated
        if mask.any():
            observation, _ = ours.reset(options={"reset_mask": mask})
            np.testing.assert_allclose(observation, theirs.reset(mask=mask), **CLOSE)
    return terminations, truncations, both


def at_random(env_id, seed=0):
    space = gym.spec(env_id).make().action_space
    generator = np.random.default_rng(seed)

    def policy(observation):
        if isinstance(space, gym.spaces.Discrete):
            return generator.integers(space.n, size=len(observation))
        return generator.uniform(space.low, space.high, (len(observation), 1)).astype(np.float32)

    return policy


# Plays well by hand, so that states are met that random actions never lead to.
SKILLED = {
    "CartPole-v1": lambda seen: (seen[:, 2] + seen[:, 3] + 0.1 * seen[:, 1] + 0.05 * seen[:, 0] > 0).astype(int),
    "Pendulum-v1": lambda seen: 5.0 * np.sign(seen[:, 2:]),  # beyond the bounds: both clip
    "Acrobot-v1": lambda seen: np.where(seen[:, 4] > 0, 0, 2),
    "MountainCar-v0": lambda seen: np.where(seen[:, 1] >= 0, 2, 0),
}


@pytest.mark.parametrize("env_id", IDS)
def test_skilled_and_random_play_are_equal(env_id):
    terminations, truncations, _ = play(env_id, SKILLED[env_id], num_envs=2, steps=520, seed=100)
    assert (terminations > 0) == (env_id in ("Acrobot-v1", "MountainCar-v0"))
    assert (truncations > 0) == (env_id in ("CartPole-v1", "Pendulum-v1"))
    play(env_id, at_random(env_id), num_envs=2, steps=60)
    if env_id == "Acrobot-v1":
        env = make(env_id, 50)
        env.reset(seed=0, options={"low": 2.5, "high": 9.0})
        env.step(np.ones(50, int))
        assert np.abs(env._state[:2]).max() <= np.pi  # however far the angles have turned


def test_terminated_and_truncated_in_one_step():
    counts = [
        play("CartPole-v1", lambda seen: np.ones(len(seen), int), num_envs=4, steps=60, max_episode_steps=limit)
        for limit in (9, 10)
    ]
    assert all(both > 0 for _, _, both in counts)
    assert any(terminations > both for terminations, _, both in counts)
    assert any(truncations > both for _, truncations, both in counts)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("Pendulum-v1", {"g": 9.81}),
        ("MountainCar-v0", {"goal_velocity": 0.03}),
    ],
)
def test_arguments_mean_the_same(env_id, kwargs):
    play(env_id, SKILLED[env_id], num_envs=2, steps=200, **kwargs)
    play(env_id, at_random(env_id), num_envs=2, steps=50, **kwargs)


@settings(deadline=None, max_examples=20)
@given(
    env_id=st.sampled_from(IDS),
    seeds=st.lists(st.integers(0, 2**31 - 1), min_size=3, max_size=3),
    masks=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=8),
    reseeded=st.tuples(*[st.none() | st.integers(0, 100)] * 3),
    action_seed=st.integers(0, 100),
)
def test_any_masks_and_seeds_are_equal(env_id, seeds, masks, reseeded, action_seed):
    """Each environment's episodes depend on its own seed alone, whenever and with whomever it is reset."""
    ours, theirs = make(env_id, 3), Reference(env_id, 3)
    policy = at_random(env_id, action_seed)
    ours.reset(seed=list(seeds))
    observation = theirs.reset(seeds)
    for count, mask in enumerate(masks):
        actions = policy(observation)
        ours.step(actions)
        theirs.step(actions)
        new_seeds = reseeded if count == len(masks) // 2 else None
        observation, _ = ours.reset(seed=new_seeds, options={"reset_mask": np.array(mask)})
        np.testing.assert_allclose(observation, theirs.reset(new_seeds, mask), **CLOSE)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {"low": -0.2, "high": 0.1}),
        ("Acrobot-v1", {"low": 0.3, "high": 0.5}),
        ("MountainCar-v0", {"low": -0.9, "high": 0.3}),
        ("Pendulum-v1", {"x_init": 0.1, "y_init": 3}),
    ],
)
def test_reset_bounds(env_id, options):
    observation, _ = make(env_id, 4).reset(seed=3, options=options)
    np.testing.assert_allclose(observation, Reference(env_id, 4).reset(range(3, 7), **options), **CLOSE)
    default, _ = make(env_id, 4).reset(seed=3)
    assert (default != observation).any(axis=1).all()
    with pytest.raises(ValueError, match="could not be converted"):
        make(env_id, 2).reset(options=dict.fromkeys(options, "x"))


@pytest.mark.parametrize("env_id", IDS)
def test_without_a_seed_no_two_are_the_same(env_id):
    observations = [make(env_id, 3).reset()[0] for _ in range(2)]
    assert len(np.unique(np.concatenate(observations), axis=0)) == 6


@pytest.mark.parametrize("env_id", IDS)
def test_what_is_returned_is_of_the_space_and_belongs_to_the_caller(env_id):
    env = make(env_id, 2, max_episode_steps=2)
    policy = at_random(env_id)
    observation, _ = env.reset(seed=0)
    kept = observation.copy()
    first = env.step(policy(observation))
    assert observation in env.observation_space
    assert first[0] in env.observation_space
    assert [(part.dtype, part.shape) for part in first[1:4]] == [(np.float64, (2,)), (bool, (2,)), (bool, (2,))]
    np.testing.assert_array_equal(observation, kept)
    copies = [part.copy() for part in first[:4]]
    env.step(policy(observation))
    for part, copy in zip(first, copies, strict=False):
        np.testing.assert_array_equal(part, copy)
        part[...] = 1  # neither ends an episode nor is seen again
    seen, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert (seen[1] != 1).any()


def test_registered_like_gymnasiums():
    for env_id in IDS:
        ours, theirs = gym.spec(f"actor_learner/{env_id}"), gym.spec(env_id)
        assert ours.entry_point == theirs.entry_point
        assert ours.max_episode_steps == theirs.max_episode_steps is not None
        assert ours.reward_threshold == theirs.reward_threshold


@pytest.mark.parametrize("env_id", IDS)
def test_single_and_sync_run_gymnasiums_own(env_id):
    env = gym.make(f"actor_learner/{env_id}", render_mode="rgb_array")
    assert type(env.unwrapped) is type(gym.make(env_id).unwrapped)
    sync = resolve_env(f"actor_learner/{env_id}", vectorization="sync").make(2)
    observation, _ = sync.reset(seed=5)
    np.testing.assert_allclose(observation, make(env_id, 2).reset(seed=5)[0], **CLOSE)


def test_a_time_limit_is_there_unless_made_directly():
    env = resolve_env("actor_learner/CartPole-v1", {"max_episode_steps": 3}).make(4)
    assert isinstance(env, classic_control.CartPoleVectorEnv)
    env.reset(seed=0)
    assert [env.step(np.ones(4, int))[3].all() for _ in range(3)] == [False, False, True]
    env = classic_control.MountainCarVectorEnv(2)
    env.reset(seed=0)
    assert not any(env.step(np.ones(2, int))[3].any() for _ in range(300))


def test_ended_environments_must_be_reset():
    env = make("CartPole-v1", 3, max_episode_steps=1)
    step = functools.partial(env.step, np.ones(3, int))
    with pytest.raises(ResetNeeded, match="Received: 3 of them, the first with number 0"):
        step()
    env.reset()
    step()
    env.reset(options={"reset_mask": [True, False, True]})
    with pytest.raises(ResetNeeded, match="Received: 1 of them, the first with number 1"):
        step()
    env.reset(options={"reset_mask": [False, True, False]})
    step()


@pytest.mark.parametrize(
    ("kwargs", "received"),
    [
        ({"num_envs": 0}, "num_envs=0"),
        ({"num_envs": 1, "max_episode_steps": 0}, "max_episode_steps=0"),
        ({"num_envs": 1, "render_mode": "rgb_array"}, "render_mode='rgb_array'"),
    ],
)
@pytest.mark.parametrize("env_id", IDS)
def test_refused_arguments(env_id, kwargs, received):
    with pytest.raises(ValueError, match=f"Received: {received}$"):
        make(env_id, **kwargs)


@pytest.mark.parametrize(
    ("env_id", "call", "received"),
    [
        ("CartPole-v1", lambda env: env.reset(seed=[1, 2]), "2 seeds"),
        ("CartPole-v1", lambda env: env.reset(options={"reset_mask": np.ones(3)}), r"dtype=float64, shape=\(3,\)"),
        ("CartPole-v1", lambda env: env.reset(options={"reset_mask": np.ones(2, bool)}), r"dtype=bool, shape=\(2,\)"),
        ("CartPole-v1", lambda env: env.step(np.ones((3, 1), int)), r"actions.shape=\(3, 1\)"),
        (
            "Pendulum-v1",
            lambda env: env.step(np.zeros(3, np.float32)),
            r"shape \(3, 1\). Received: actions.shape=\(3,\)",
        ),
    ],
)
def test_refused_calls(env_id, call, received):
    env = make(env_id, 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"{received}$"):
        call(env)
