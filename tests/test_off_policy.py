"""Whole runs with a replay buffer: they repeat byte for byte, keep their debt, and go on after a resume."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import warnings

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box

import actor_learner as al
from actor_learner.build import _critics, _saved_critics
from actor_learner.networks.contract import normalization_layers
from actor_learner.runs.checkpoints import newest_whole
from tests.support.small_networks import same_weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_xla")]

SHORT = {"total_steps": 600, "num_envs": 4, "unroll_length": 8, "quiet": True}
OFTEN = {"learning_starts": 100, "minibatch_size": 8, "updates_per_step": 0.3}
DQN = al.DQN(**OFTEN, buffer_size=256, target_update_interval=100, prioritized=True, n_step=3)
SAC = al.SAC(**OFTEN, buffer_size=400)


def rows_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def run(run_dir, algorithm=DQN, env="CartPole-v1", **fields):
    sizes = {} if "init_from" in fields else {"hidden_sizes": (8,)}
    fields = {"vectorization": "sync", **SHORT, **sizes, **fields}
    return al.train(al.TrainConfig(env=env, algorithm=algorithm, run_dir=run_dir, **fields))


def test_the_number_of_actors_changes_no_byte(tmp_path):
    one, other = (run(tmp_path / str(count), num_actors=count).network.get_weights() for count in (0, 2))
    assert same_weights(one, other)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The directory of a run that has ended, for others to begin with what it has."""
    return run(tmp_path_factory.mktemp("runs") / "first", num_actors=0).run_dir


def resumed(run_dir, **changes):
    """Goes on with a run by the config that it has recorded, and returns the rows that are new."""
    before = len(rows_of(run_dir))
    data = json.loads((run_dir / "config.json").read_text()) | {"callbacks": []}
    config = al.TrainConfig.from_json(data)
    al.train(config.replace(run_dir=run_dir, **changes), resume=True)
    return rows_of(run_dir)[before:]


def test_gradient_steps_are_kept_at_any_lag_and_after_a_resume(tmp_path):
    run(tmp_path / "run", num_actors=2, max_policy_lag=2)
    assert resumed(tmp_path / "run", total_steps=900)
    for row in rows_of(tmp_path / "run"):
        assert row["gradient_steps"] == math.floor(max(0, row["env_steps"] - 100) * 0.3)
        assert row["gradient_steps_owed"] == 0
        assert row["policy_lag_max"] <= 2
    assert al.load_policy(tmp_path / "run").exported.distribution == "greedy"


def test_a_checkpoint_holds_the_buffer(first, tmp_path):
    checkpoint = newest_whole(first / "checkpoints")[0]
    assert al.ReplayBuffer.load(checkpoint).next_column > al.ReplayBuffer.load(checkpoint).first_column > 0
    shutil.copytree(first, tmp_path / "run", symlinks=True)
    before = rows_of(first)[-1]
    assert resumed(tmp_path / "run", total_steps=664)[0]["gradient_steps"] > before["gradient_steps"]


def test_a_run_whose_checkpoints_leave_out_the_buffer_collects_first(tmp_path):
    run(tmp_path / "run", checkpoint_buffer=False, num_actors=0, total_steps=200)
    with pytest.raises(ValueError, match="There is no replay buffer there"):
        al.ReplayBuffer.load(newest_whole(tmp_path / "run/checkpoints")[0])
    before = rows_of(tmp_path / "run")[-1]["gradient_steps"]
    gradient_steps = [row["gradient_steps"] for row in resumed(tmp_path / "run", total_steps=360)]
    assert gradient_steps[0] == before < gradient_steps[-1]


def test_a_run_begins_with_the_buffer_of_another(first, tmp_path):
    """Demonstrations, for example: they are drawn from at once, and the buffer takes the algorithm's size.

    A run that resumes without a buffer of its own has them again.
    """
    algorithm = dataclasses.replace(DQN, learning_starts=0, buffer_size=384)
    fields = {"init_buffer": first / "checkpoints/final", "num_actors": 0, "total_steps": 200}
    with pytest.raises(ValueError, match=r"`unroll_length` must be a multiple of the buffer's, 8.*unroll_length=12"):
        run(tmp_path / "run", algorithm, **fields, unroll_length=12)
    run(tmp_path / "run", algorithm, **fields, unroll_length=16)
    row = rows_of(tmp_path / "run")[0]
    assert row["buffer_rows"] > row["env_steps"] + 150
    buffer = al.ReplayBuffer.load(tmp_path / "run/checkpoints/final")
    assert (buffer.capacity, buffer.unroll_length) == (384, 8)

    run(tmp_path / "again", algorithm, **fields, checkpoint_buffer=False)
    before = rows_of(tmp_path / "again")[-1]
    row = resumed(tmp_path / "again", total_steps=300)[0]
    assert row["buffer_rows"] > row["env_steps"] - before["env_steps"] + 150


class Stop(keras.callbacks.Callback):
    def __init__(self, after):
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch, logs=None):
        self.epsilon = logs["epsilon"]
        if logs["env_steps"] >= self.after:
            raise KeyboardInterrupt


def test_a_run_from_the_weights_of_another_explores_by_its_own_schedule(first, tmp_path):
    assert rows_of(first)[-1]["epsilon"] < 0.1
    stop = Stop(after=1)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", init_from=first, num_actors=0, callbacks=[stop])
    assert stop.epsilon == 1.0


@pytest.mark.parametrize(("after", "seed"), [(64, 0), pytest.param(200, 1, marks=pytest.mark.thorough)])
def test_a_run_is_not_replaced_by_one_that_only_filled_its_buffer(first, after, seed, tmp_path):
    shutil.copytree(first, tmp_path / "run", symlinks=True)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", num_actors=0, seed=1, overwrite=True, callbacks=[Stop(after)])
    assert json.loads((tmp_path / "run/config.json").read_text())["seed"] == seed


class FirstCritics(al.callbacks.Callback):
    """What the run begins with, which may be all that it is for."""

    def __init__(self, stops=True):
        super().__init__()
        self.stops = stops

    def on_train_begin(self, logs=None):
        self.model.stop_training = self.stops
        self.critics = self.learner.critics
        self.weights = [critic.get_weights() for critic in self.critics]
        self.ent_coef = self.learner._build_models().variables["log_ent_coef"].numpy()


@pytest.fixture(scope="module")
def of_sac(tmp_path_factory):
    """The directory of a run of SAC that has ended, and its callback."""
    watch = FirstCritics(stops=False)
    fields = {"num_actors": 0, "normalize_observation": True, "callbacks": [watch]}
    return run(tmp_path_factory.mktemp("runs") / "sac", SAC, "Pendulum-v1", **fields).run_dir, watch


@pytest.mark.thorough
def test_a_run_from_the_weights_of_another_begins_with_its_critics(of_sac, tmp_path):
    """Those that a new run would make know nothing of the policy, and have other sizes."""
    (run_dir, first), seen = of_sac, FirstCritics()
    fields = {"env": "Pendulum-v1", "num_actors": 0, "init_from": run_dir, "callbacks": [seen]}
    run(tmp_path / "run", SAC, init_from_count=5, **fields)
    ended = [critic.get_weights() for critic in first.critics]
    counts = {id(layer.count) for critic in seen.critics for layer in normalization_layers(critic)}
    assert counts
    for critic, before, found in zip(seen.critics, ended, seen.weights, strict=True):
        for weight, one, other in zip(critic.weights, before, found, strict=True):
            np.testing.assert_array_equal(other, 5.0 if id(weight) in counts else one)
    assert seen.ent_coef == first.learner._models.variables["log_ent_coef"].numpy() != 0.0
    other = dataclasses.replace(SAC, ent_coef="auto_0.5")
    with pytest.warns(UserWarning, match="critics don't: begin them with al.ObservationNormalization"):
        run(tmp_path / "own", other, critics=al.default_critic, **fields)
    assert seen.weights[0][0].shape != ended[0][0].shape
    assert seen.ent_coef == pytest.approx(math.log(0.5))


def test_critics_normalize_where_a_network_that_was_given_does():
    """That of BC brings none, and the config can't say what its network does."""
    spaces = Box(-1, 1, (3,)), Box(-2, 2, (1,))
    network = al.default_network(*spaces, hidden_sizes=(8,), normalize_observation=True, action_noise=0.1)
    make = _critics(al.TrainConfig(env="Pendulum-v1", algorithm=al.TD3(), network=lambda *_: network), network, 0)
    assert len(normalization_layers(make(*spaces))) == 1


def test_critics_of_another_size_start_anew_with_one_warning(of_sac):
    config = al.TrainConfig(env="Pendulum-v1", algorithm=al.TQC(num_critics=3, quantiles=5), init_from=of_sac[0])
    expected = (
        r"^The critics of `init_from` start anew: TQC's have \[5, 5, 5\] outputs\. .* critics with \[1, 1\] outputs$"
    )
    with pytest.warns(UserWarning, match=expected):
        assert _saved_critics(config) == []
    assert len(_saved_critics(config.replace(algorithm=al.TD3()))) == 2


def test_critics_that_an_algorithm_refuses_end_the_run_without_a_warning(of_sac, tmp_path):
    with pytest.raises(ValueError, match="^CrossQ needs critics with layers that normalize by batches"):
        run(tmp_path / "run", al.CrossQ(**OFTEN), env="Pendulum-v1", num_actors=0, init_from=of_sac[0])


def test_a_run_of_quantiles_resumes_and_exports_their_means(tmp_path):
    algorithm = al.QRDQN(**OFTEN, buffer_size=256, target_update_interval=100, quantiles=6)
    run(tmp_path / "run", algorithm, num_actors=0, total_steps=200)
    steps = rows_of(tmp_path / "run")[-1]["gradient_steps"]
    assert resumed(tmp_path / "run", total_steps=300)[-1]["gradient_steps"] > steps
    observation = np.random.default_rng(0).normal(size=4).astype(np.float32)
    quantiles = np.asarray(al.load_network(tmp_path / "run")(observation[None])["quantiles"])
    value = al.load_policy(tmp_path / "run").value(observation)
    assert value == pytest.approx(quantiles.mean(axis=-1).max(), rel=1e-5, abs=1e-6)


def test_a_run_of_crossq_acts_by_its_running_statistics_and_goes_on(tmp_path):
    algorithm = al.CrossQ(**OFTEN, buffer_size=400, critic_units=6)
    network = run(tmp_path / "run", algorithm, env="Pendulum-v1", num_actors=1, total_steps=300).network
    assert all(float(layer.count) > 0 for layer in network.layers if isinstance(layer, al.BatchRenormalization))
    observation = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    mean = np.asarray(network(observation, training=False)["parameters"])[:, :1]
    actions = al.load_policy(tmp_path / "run").act(observation, deterministic=True)
    np.testing.assert_allclose(actions, 2.0 * np.tanh(mean), rtol=1e-4, atol=1e-5)
    critics = _saved_critics(al.TrainConfig(env="Pendulum-v1", algorithm=algorithm, init_from=tmp_path / "run"))
    assert [critic.get_layer("critic_hidden_2").units for critic in critics] == [6, 6]
    assert resumed(tmp_path / "run", total_steps=400)


def test_a_run_of_sac_on_choices_exports_its_policy_and_goes_on(tmp_path):
    network = run(tmp_path / "run", SAC, num_actors=1, total_steps=300).network
    observation = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    logits = np.asarray(network(observation)["parameters"])
    actions = al.load_policy(tmp_path / "run").act(observation, deterministic=True)
    np.testing.assert_array_equal(actions, logits.argmax(axis=1))
    config = al.TrainConfig(algorithm=SAC, init_from=tmp_path / "run")
    assert [critic.output_shape for critic in _saved_critics(config, 2)] == [(None, 2)] * 2
    assert resumed(tmp_path / "run", total_steps=400)[-1]["entropy"] <= math.log(2)


def test_a_policy_without_values_says_so(first, of_sac):
    with pytest.raises(ValueError, match="This policy has no values"):
        al.load_policy(of_sac[0]).value(np.zeros(3, np.float32))
    assert np.isfinite(al.load_policy(first).value(np.zeros(4, np.float32)))


class StopAtOnce(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.stop_training = True


def test_targets_that_are_copied_too_often_or_never_are_warned_of(tmp_path):
    """SB3 Zoo's settings for CartPole, but for `train_freq`, which is the batch here: values grew to 1e9."""
    zoo = al.DQN(learning_starts=0, target_update_interval=10, updates_per_step=0.5, minibatch_size=8, buffer_size=512)
    fields = {"num_actors": 0, "callbacks": [StopAtOnce()]}
    with pytest.warns(UserWarning, match=r"copied after 5 gradient steps: .* 4 env steps in a batch"):
        run(tmp_path / "often", zoo, num_envs=1, unroll_length=4, total_steps=16, **fields)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(tmp_path / "other", zoo, num_envs=1, unroll_length=256, total_steps=256, **fields)
    never = dataclasses.replace(DQN, target_update_interval=128)
    with pytest.warns(UserWarning, match=r"Targets never move.*target_update_interval=128, total_steps=128"):
        run(tmp_path / "never", never, total_steps=128, **fields)


def test_unrolls_grow_with_the_returns():
    assert al.TrainConfig(algorithm=al.DQN()).unroll_length == 4
    assert al.TrainConfig(algorithm=al.DQN(n_step=3)).unroll_length == 12
    assert al.TrainConfig(algorithm=al.DQN()).replace(algorithm=al.DQN(n_step=5)).unroll_length == 20


def test_critics_of_one_s_own_are_saved_and_never_exported(tmp_path):
    saved, loaded = FirstCritics(stops=False), FirstCritics()
    fields = {"num_actors": 0, "total_steps": 200, "critics": own_critic}
    run(tmp_path / "run", SAC, "Pendulum-v1", callbacks=[saved], **fields)
    checkpoint = newest_whole(tmp_path / "run/checkpoints")[0]
    assert {"critic-0.keras", "critic-1.keras"} <= {file.name for file in checkpoint.iterdir()}
    names = al.load_policy(tmp_path / "run").exported.weight_names
    assert not [name for name in names if "own" in name]
    resumed(tmp_path / "run", total_steps=300, critics=own_critic, callbacks=[loaded])
    for critic, weights in zip(saved.critics, loaded.weights, strict=True):
        assert same_weights(critic.get_weights(), weights)


def own_critic(observation_space, action_space):
    inputs = keras.Input(observation_space.shape), keras.Input(action_space.shape)
    hidden = keras.layers.Dense(4, "relu", name="own")(keras.layers.Concatenate()(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory": "gru"}, "`memory` must be None for DQN"),
        ({"distribution": "squashed"}, "`distribution` must be left out for DQN"),
        ({"critics": own_critic}, "`critics` must be None for DQN, which has none"),
        ({"algorithm": al.PPO(), "critics": own_critic}, "`critics` must be None for PPO, which has none"),
        ({"algorithm": al.DQN(dueling=True), "network": own_critic}, "`dueling` is for the default network"),
        ({"critics": 3}, "`critics` must be a callable"),
        (
            {"total_steps": 100, "algorithm": al.SAC()},
            "`learning_starts` must be below .*learning_starts=100, total_st",
        ),
        (
            {"algorithm": al.A2C(), "init_buffer": "there"},
            "`init_buffer` must be None for A2C, which has no replay buf",
        ),
        ({"algorithm": al.DQN(buffer_size=63)}, "`buffer_size` must be at least the 64 env steps of a batch"),
        ({"algorithm": al.TD3(action_noise=0.3), "network": own_critic}, "`action_noise` is for the default network"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(fields, message):
    with pytest.raises(ValueError, match=message):
        al.TrainConfig(**{"algorithm": al.DQN(), **fields})


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (al.DQN, {"buffer_size": 0}, "`buffer_size` must be an integer of at least 1. Received: buffer_size=0"),
        (al.DQN, {"updates_per_step": 0}, "`updates_per_step` must be a finite number above 0"),
        (al.DQN, {"updates_per_step": 1e300}, "`updates_per_step` must be .* at most 10,?000"),
        (al.DQN, {"tau": 1.5}, "`tau`"),
        (al.DQN, {"loss_function": "mse"}, "`loss_function` must be one of 'huber', 'squared'"),
        (al.SAC, {"ent_coef": "often"}, "`ent_coef` must be a number of at least 0, 'auto', or 'auto_' and"),
        (al.SAC, {"ent_coef": "auto_-1"}, "`ent_coef`"),
        (al.TD3, {"policy_delay": 0}, "`policy_delay` must be an integer of at least 1"),
        (al.DQN, {"train_freq": 4}, "did you mean 'updates_per_step'"),
        (al.DQN, {"batch_size": 4}, "did you mean 'minibatch_size'"),
    ],
)
def test_hyperparameters_out_of_range_are_one_line(cls, fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        cls(**fields)


def test_runs_that_cannot_be_are_refused(tmp_path):
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(ValueError, match=r"BackupAndRestore keeps no critics, .* which DQN needs: .*`resume=True`"):
        run(tmp_path / "run", num_actors=0, callbacks=[backup])
    with pytest.raises(ValueError, match="DQN needs a Discrete action space; SAC and TD3 take Boxes"):
        run(tmp_path / "run", env="Pendulum-v1", num_actors=0)
