"""Noise of one's own: one process for each environment, wherever the policy acts."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

import actor_learner as al
from actor_learner.algorithms.exploration import PROCESSES
from actor_learner.networks import default
from actor_learner.policy.noise import Noise

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]

BATCH = 6
NORMALS: dict = dict.fromkeys(("noise_normal", "noise_columns"), 2) | {"distribution": "gaussian", "noise_hold": 1}
POLICY = SimpleNamespace(**NORMALS, noise_uniform=0, draws=False, epsilon_ladder=0.0)


def steps_of_episode(generator, size):
    """Tell the step of an episode, and the environment by its generator."""
    mark = generator.random() / 2
    yield from ([step + mark] * size for step in range(1, 8))


def test_a_process_is_of_one_environment_and_begins_anew_with_its_episodes():
    noise = Noise(POLICY, 3, exploration=steps_of_episode)
    drawn = [noise.draw(BATCH, np.arange(BATCH) == step).copy() for step in range(9)]
    marks = np.modf([values[:, 0] for values in drawn])[0]
    steps = np.floor([values[:, 0] for values in drawn])
    assert len(np.unique(marks[0])) == BATCH
    expected = [[1 + (step - (row if step >= row else 0)) % 7 for row in range(BATCH)] for step in range(9)]
    np.testing.assert_array_equal(steps, expected)
    later = Noise(POLICY, 3, first_stream=2, exploration=steps_of_episode)
    np.testing.assert_array_equal(later.draw(1), drawn[0][2:3])
    assert (Noise(POLICY, 3).draw(BATCH) != Noise(POLICY, 3, exploration=PROCESSES["ou"]).draw(BATCH)).all()


@pytest.mark.parametrize(("name", "neighbours"), [("pink", 0.77), ("ou", 0.85)])
def test_noise_has_a_variance_of_one_and_a_colour(name, neighbours):
    """Of pink noise, the power falls with the frequency."""
    process = PROCESSES[name]
    found = np.array([list(itertools.islice(process(np.random.default_rng(i), 2), 1000)) for i in range(200)])
    assert found.var(axis=(0, 2)) == pytest.approx(np.ones(1000), abs=0.4)
    assert found.var() == pytest.approx(1.0, abs=0.03)
    assert np.mean(found[:, 1:] * found[:, :-1]) == pytest.approx(neighbours, abs=0.03)
    if name == "pink":
        power = np.mean(np.abs(np.fft.rfft(found, axis=1)) ** 2, axis=(0, 2))[1:-1]
        slope = np.polyfit(np.log(np.arange(1, 500)), np.log(power), 1)[0]
        assert slope == pytest.approx(-1.0, abs=0.02)


def actions(network, exploration="pink", **options):
    fields = {"num_actors": 0, "num_envs": 4, "unroll_length": 8, "vectorization": "sync", **options}
    with al.ActorPool("Pendulum-v1", network, exploration=exploration, **fields) as actors:
        return np.concatenate([actors.collect(timeout=60).copy().action for _ in range(2)])


def test_actors_anywhere_have_the_same_noise():
    env = gym.make("Pendulum-v1")
    network = default.default_network(env.observation_space, env.action_space, action_noise=1.0, hidden_sizes=(8,))
    expected = actions(network)
    assert (expected != actions(network, None)).any()
    np.testing.assert_array_equal(actions(network, num_actors=2), expected)
    np.testing.assert_allclose(actions(network, num_actors=2, acting="device"), expected, rtol=1e-4, atol=1e-4)
    mine = actions(network, lambda generator, size: itertools.repeat([50.0] * size), num_actors=1)
    assert mine.min() > 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": al.PPO()}, "`exploration` must be None for PPO; SAC, TQC, CrossQ and TD3 take one"),
        ({"env": "CartPole-v1", "algorithm": al.DQN()}, "None for DQN; .*exploration='pink'"),
        ({"exploration": "brown"}, "'pink', 'ou' or a function .* Received: exploration='brown'"),
        ({"exploration": "os:system"}, "not one of Python's own"),
        ({"exploration": lambda generator, size: [np.zeros(3)]}, r"not \[0.0, 0.0, 0.0\] for a size of 2"),
        ({"exploration": lambda generator: []}, "TypeError: .*takes 1 positional argument"),
    ],
)
def test_noise_that_cannot_be_is_one_line(fields, message):
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(**{"env": "Pendulum-v1", "algorithm": al.TD3(), "exploration": "pink", **fields})


def test_choices_have_no_noise():
    with pytest.raises(ValueError, match=r"None for actions of Discrete\(2\).*exploration='ou'"):
        al.ActorPool("CartPole-v1", num_actors=0, exploration="ou")


def test_a_run_keeps_its_noise_and_goes_on_with_it(tmp_path):
    algorithm = al.SAC(learning_starts=32, minibatch_size=8, updates_per_step=0.1)
    fields = {"env": "Pendulum-v1", "algorithm": algorithm, "num_actors": 0, "num_envs": 2, "hidden_sizes": (8,)}
    config = al.TrainConfig(
        **fields, total_steps=64, exploration=steps_of_episode, run_dir=tmp_path / "run", quiet=True
    )
    al.train(config)
    recorded = json.loads((tmp_path / "run/config.json").read_text())
    assert recorded["exploration"] == f"{__name__}:steps_of_episode"
    again = al.TrainConfig.from_json(recorded)
    assert al.train(again.replace(run_dir=tmp_path / "run", total_steps=96), resume=True).metrics["env_steps"] == 96
    with pytest.raises(ValueError, match='exploration is .*steps_of_episode.* there, "pink" here'):
        al.train(config.replace(exploration="pink"), resume=True)
