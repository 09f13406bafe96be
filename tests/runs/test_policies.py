"""Runs in which several policies learn: each by itself, from the same games; saved, resumed, evaluated."""

from __future__ import annotations

import json
import shutil
import warnings

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.cli import main
from actor_learner.runs.checkpoints import learner_folder
from actor_learner.runs.metrics import has_undone
from tests.support.hunt_game import Hunt

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]

HUNT = "tests.support.hunt_game:Hunt"
RULE = {"hunter_*": "hunter", "*": "prey"}
SIZES = {"num_actors": 0, "num_envs": 12, "unroll_length": 16, "hidden_sizes": (8,), "tensorboard": False}
BATCH = 12 * 16


def config(run_dir, policies=("hunter", "prey"), updates=4, **fields):
    fields = {"env": HUNT, "policy_of": RULE, "max_policy_lag": 0, "quiet": True, **SIZES, **fields}
    algorithm = fields.pop("algorithm", al.PPO(epochs=2, minibatch_size=32))
    steps = fields.pop("total_steps", updates * BATCH // 2)  # some rows are of dead agents
    return al.TrainConfig(policies=policies, run_dir=run_dir, total_steps=steps, algorithm=algorithm, **fields)


def weights(networks):
    return {name: network.get_weights() for name, network in networks.items()}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        for one, other in zip(first[name], second[name], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return al.train(config(tmp_path_factory.mktemp("run") / "run", milestone_steps=BATCH // 2))


def test_each_policy_learns_from_its_own_rows(run):
    rows = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    last = rows[-1]
    assert set(run.network) == {"hunter", "prey"}
    assert {"hunter/policy_loss", "prey/policy_loss", "prey/episode_return", "hunter/episode_length"} <= last.keys()
    assert last["episode_return"] == pytest.approx((last["hunter/episode_return"] + last["prey/episode_return"]) / 2)
    learners = {
        name: al.Learner.load(run.run_dir / "checkpoints" / "final" / "policies" / name) for name in run.network
    }
    assert sum(learner.env_steps for learner in learners.values()) == last["env_steps"]
    assert learners["hunter"].env_steps > learners["prey"].env_steps
    assert learners["hunter"].network.input_shape == (None, 2)
    assert_equal(weights(run.network), {name: learner.get_weights() for name, learner in learners.items()})


def test_a_run_is_the_same_with_actors_in_processes_and_by_the_learners_alone(run, tmp_path):
    again = al.train(config(tmp_path / "run", num_actors=2))
    assert_equal(weights(run.network), weights(again.network))
    learners = {}
    with al.ActorPool(
        Hunt, policies=("hunter", "prey"), policy_of=RULE, num_actors=0, num_envs=12, unroll_length=16
    ) as pool:
        pool.collect()
        assert set(pool.blank_trajectory()) == {"hunter", "prey"}
        learners |= {
            name: al.Learner(network, al.PPO(), action_space=pool.action_space[name])
            for name, network in pool.network.items()
        }
        batches = pool.collect()
        before = weights(pool.network)
        learners["prey"].update(batches["prey"])
        assert_equal({"hunter": before["hunter"]}, {"hunter": learners["hunter"].get_weights()})


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    first = al.train(config(tmp_path / "run"))
    kept = weights(first.network)
    finished = al.train(config(tmp_path / "run"), resume=True)
    assert_equal(kept, weights(finished.network))
    longer = config(tmp_path / "run", updates=8)
    second = al.train(longer, resume=True)
    assert second.metrics["env_steps"] >= longer.total_steps
    assert second.metrics["updates"] > first.metrics["updates"]
    for name, network in second.network.items():
        assert not all(map(np.array_equal, kept[name], network.get_weights()))
    with pytest.raises(ValueError, match="the order of policies"):
        al.train(config(tmp_path / "run", ("prey", "hunter"), updates=16), resume=True)
    with pytest.raises(ValueError, match="policies.hunter"):
        al.train(config(tmp_path / "run", {"hunter": {"ent_coef": 0.5}, "prey": {}}, updates=16), resume=True)


def test_a_policy_s_share_of_the_steps_is_named(tmp_path):
    dqn = al.DQN(learning_starts=950, buffer_size=1000, target_update_interval=500)
    policies = {"hunter": al.PolicyConfig(algorithm=dqn), "prey": al.PolicyConfig(algorithm=al.SAC(buffer_size=1000))}
    expected = r"^`policies`, hunter: \d+ of total_steps=1000 are its share\. `learning_starts`"
    with pytest.raises(ValueError, match=expected):
        al.train(config(tmp_path / "run", policies, total_steps=1000))


def test_a_policy_of_another_run_acts_and_never_learns(run, tmp_path):
    trained = run.run_dir / "policies" / "prey"
    assert learner_folder(trained).samefile(run.run_dir / "checkpoints/final/policies/prey")
    assert learner_folder(run.run_dir / "policies/no") is None
    shutil.copytree(run.run_dir / "checkpoints/final/policies/prey", tmp_path / "policies/mine/learner")
    assert learner_folder(tmp_path / "policies/mine/learner") == tmp_path / "policies/mine/learner"
    policies = {"hunter": al.PolicyConfig(), "prey": al.PolicyConfig(init_from=trained, learning=False)}
    result = al.train(config(tmp_path / "run", policies))
    assert_equal({"prey": run.network["prey"].get_weights()}, {"prey": result.network["prey"].get_weights()})
    assert not [name for name in result.metrics if name.startswith("prey/") and "episode" not in name]
    (tmp_path / "run" / "policies" / "prey").rename(tmp_path / "moved")
    resumed = al.train(config(tmp_path / "run", policies, updates=6), resume=True)
    assert_equal({"prey": run.network["prey"].get_weights()}, {"prey": resumed.network["prey"].get_weights()})
    whole = al.train(config(tmp_path / "from", updates=1, total_steps=1, init_from=run.run_dir, hidden_sizes=None))
    assert whole.metrics["hunter/episode_return"]


def test_an_undone_update_of_one_policy_changes_no_other(tmp_path):
    policies = {"hunter": {}, "prey": {"learning_rate": 1e38, "max_grad_norm": None}}
    with pytest.raises(RuntimeError, match="3 updates in a row were not finite") as caught:
        al.train(config(tmp_path / "run", policies, updates=50, max_undone_updates=3, checkpoint_updates=1))
    assert "prey/" in str(caught.value)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("prey/undone") for row in rows] == [1.0] * 3
    assert not [row for row in rows if "hunter/undone" in row or "undone" in row]
    assert all(map(has_undone, rows))
    assert len(list((tmp_path / "run" / "incidents" / "prey").glob("*/incident.json"))) == 3
    hunter, prey = (
        al.Learner.load(tmp_path / "run" / "checkpoints" / "final" / "policies" / name) for name in ("hunter", "prey")
    )
    assert (hunter.updates, prey.updates) == (3, 0)


def test_policies_have_algorithms_and_networks_of_their_own(tmp_path):
    policies = {
        "hunter": al.PolicyConfig(
            algorithm=al.DQN(buffer_size=1000, learning_starts=64, target_update_interval=64), hidden_sizes=(4,)
        ),
        "prey": al.PolicyConfig(ent_coef=0.1, memory="gru", memory_size=4),
    }
    result = al.train(config(tmp_path / "run", policies, updates=6, algorithm=al.PPO(minibatch_size=None)))
    assert {"hunter/q_value", "hunter/buffer_rows", "prey/entropy"} <= result.metrics.keys()
    assert result.network["prey"].count_params() != result.network["hunter"].count_params()
    resumed = al.train(
        config(tmp_path / "run", policies, updates=9, algorithm=al.PPO(minibatch_size=None)), resume=True
    )
    assert resumed.metrics["hunter/buffer_rows"] > 64


class Pennies:
    """Two agents, each with a policy; a step each game, in which equal choices of four win."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(4)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {agent: {} for agent in self.agents}

    def step(self, actions):
        playing, self.agents = self.agents, []
        seen = dict.fromkeys(playing, np.zeros(1, np.float32))
        reward = dict.fromkeys(playing, float(actions["a"] == actions["b"]))
        return seen, reward, dict.fromkeys(playing, True), dict.fromkeys(playing, False), {each: {} for each in playing}


def test_policies_draw_numbers_of_their_own_in_an_evaluation(tmp_path):
    named = {"a": "a", "b": "b"}
    result = al.train(config(tmp_path / "run", ("a", "b"), env=Pennies, policy_of=named, total_steps=100))
    policy = al.load_policy(result.run_dir / "policies" / "a")
    for policies in ({}, {"a": policy, "b": policy}):
        found = al.evaluate(
            result.run_dir, env=Pennies, episodes=200, deterministic=False, policies=policies, policy_of=named
        )
        assert 0.1 < found.policies["a"].mean < 0.4
    assert not any(
        np.array_equal(*pair)
        for pair in zip(*(network.get_weights() for network in result.network.values()), strict=True)
        if pair[0].ndim > 1
    )


def test_schedules_follow_the_run_though_one_policy_has_fewer_rows(tmp_path):
    rate = al.PPO(learning_rate="linear_1e-3", epochs=1, minibatch_size=None)
    al.train(config(tmp_path / "run", updates=20, algorithm=rate))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    total = config(tmp_path / "run", updates=20).total_steps
    for row in rows[2:]:
        before = 1 - (row["env_steps"] - rows[0]["env_steps"]) / total
        assert row["hunter/learning_rate"] == pytest.approx(1e-3 * before, abs=1e-4)
        assert row["prey/learning_rate"] == pytest.approx(1e-3 * before, abs=2e-4)


class TestEvaluate:
    def test_each_policy_plays_its_agents(self, run):
        found = al.evaluate(run.run_dir, episodes=24)
        assert {name: len(each.returns) for name, each in found.policies.items()} == {"hunter": 24, "prey": 24}
        np.testing.assert_array_equal(
            found.returns, [*found.policies["hunter"].returns, *found.policies["prey"].returns]
        )
        assert found.policies["prey"].mean < 0
        again = al.evaluate(run.run_dir, episodes=24)
        np.testing.assert_array_equal(found.returns, again.returns)

    def test_other_policies_take_their_places(self, run):
        own = al.evaluate(run.run_dir, episodes=12)
        milestone = min(path for path in (run.run_dir / "checkpoints").glob("0*"))
        policy = al.load_policy(run.run_dir / "policies" / "prey")
        for same in (run.run_dir, run.run_dir / "policies" / "prey", run.run_dir / "checkpoints" / "final", policy):
            found = al.evaluate(run.run_dir, episodes=12, policies={"prey": same})
            np.testing.assert_array_equal(found.returns, own.returns)
        assert len(al.evaluate(run.run_dir, episodes=12, policies={"prey": milestone}).returns) == 24
        still = keras.models.clone_model(run.network["prey"])
        still.set_weights([np.ones_like(weight) for weight in run.network["prey"].get_weights()])
        assert (al.evaluate(run.run_dir, episodes=12, policies={"prey": still}).returns != own.returns).any()

    def test_a_run_and_its_policies_at_a_shell(self, tmp_path, capsys):
        (tmp_path / "roles.toml").write_text(
            '[hunter]\nagents = "hunter_*"\nent_coef = 0.02\n[prey]\nagents = ["prey"]\nhidden_sizes = [4]\n'
        )
        run_dir = str(tmp_path / "run")
        sizes = ["--num-actors", "0", "--num-envs", "12", "--unroll-length", "16", "--total-steps", "100", "--quiet"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main(["train", HUNT, "--policies", str(tmp_path / "roles.toml"), "--run-dir", run_dir, *sizes]) == 0
        assert main(["evaluate", run_dir, "--episodes", "6", "--policy", f"prey={run_dir}", "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert set(found["policies"]) == {"hunter", "prey"}
        assert found["policies"]["prey"]["episodes"] == 6
        assert main(["evaluate", run_dir, "--episodes", "6"]) == 0
        assert "prey: return" in capsys.readouterr().out
        recorded = json.loads((tmp_path / "run" / "config.json").read_text())
        assert recorded["policies"]["prey"] == {"agents": ["prey"], "learning": True, "hidden_sizes": [4]}

    def test_what_doesnt_fit_is_refused(self, run):
        with pytest.raises(ValueError, match=r"\['hunter', 'prey'\]. Received: policies=\['cat'\]"):
            al.evaluate(run.run_dir, policies={"cat": run.run_dir})
        with pytest.raises(ValueError, match="The policy was trained for observations"):
            al.evaluate(run.run_dir, policies={"prey": run.run_dir / "policies" / "hunter"})
        with pytest.raises(ValueError, match="`opponent` must be None"):
            al.evaluate(run.run_dir, opponent="random")


def test_callbacks_see_all_policies(tmp_path):
    seen = []

    class Watch(al.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((sorted(self.model.networks), len(self.learner.members), "prey/loss" in logs))

    stop = al.callbacks.StopOnReturn(-100.0, episodes=10, monitor="prey/episode_return")
    result = al.train(config(tmp_path / "run", callbacks=[Watch(), stop], updates_per_epoch=1))
    assert seen[0] == (["hunter", "prey"], 2, True)
    assert result.stopped_by == "StopOnReturn"
    for refused in (keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate), al.callbacks.Evaluate(100)):
        with pytest.raises(ValueError, match="works on one policy; leave it out beside `policies`"):
            al.train(config(tmp_path / "other", callbacks=[refused]))
