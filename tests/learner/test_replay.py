"""Learning from a replay buffer: losses against NumPy, how much is learned, what is undone, what is saved."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings

import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from keras import layers, ops

import actor_learner as al
from actor_learner.algorithms.off_policy.base import CRITICS, NETWORK
from actor_learner.learner import replay
from actor_learner.learner.replay import ReplayLearner
from actor_learner.networks.contract import normalization_layers
from actor_learner.spaces.structure import action_structure
from actor_learner.system.files import write_folder_atomically
from tests.support.small_networks import trace_count
from tests.support.trajectories import TORQUES, TWO_ACTIONS, VECTOR, random_trajectory, usable_rewards

SGD = keras.optimizers.SGD(0.1)
SMALL = {"hidden_sizes": (8,), "activation": "relu", "orthogonal_init": False}
OFTEN = {"buffer_size": 1000, "learning_starts": 0, "minibatch_size": 16, "updates_per_step": 0.1}
BOUNDS = Box(np.array([-2, 0, 1], np.float32), np.array([2, 1, 5], np.float32))

pytestmark = pytest.mark.usefixtures("without_xla")


def make_learner(algorithm, action_space=None, *, observation_space=VECTOR, total_steps=10_000, seed=0, **options):
    action_space = action_space or (TWO_ACTIONS if isinstance(algorithm, al.DQN) else BOUNDS)
    network = al.default_network(
        observation_space, action_space, **SMALL, **algorithm.network_options(action_structure(action_space)), seed=seed
    )
    return al.Learner(
        network,
        algorithm,
        action_space=action_space,
        observation_space=observation_space,
        total_steps=total_steps,
        seed=seed,
        **options,
    )


def dqn(**fields):
    return al.DQN(**{**OFTEN, **fields})


def sac(**fields):
    return al.SAC(**{**OFTEN, **fields})


def td3(**fields):
    return al.TD3(**{**OFTEN, **fields})


def batch(learner, seed=0, **options):
    space = learner.spaces
    return random_trajectory(
        space.action_space, observation_space=space.observation_space, seed=seed, **{"steps": 8, **options}
    )


def models_and_minibatch(learner, size=32, **options):
    learner.make_buffer(8, action_masks=False)
    learner.buffer.add(batch(learner, columns=16, **options))
    minibatch = learner.buffer.sample(size)
    models = learner._build_models()
    rng = np.random.default_rng(1)
    for copy in models.targets:
        copy.assign(np.asarray(copy.value) + rng.normal(0, 0.3, copy.shape).astype(np.float32))
    noise = rng.normal(size=(size, learner.algorithm.noise_columns * models.action_size)).astype(np.float32)
    rows = {name: value for name, value in minibatch._asdict().items() if value is not None}
    return models, {**rows, "noise": noise}


def tensors(rows):
    return {name: ops.convert_to_tensor(value) for name, value in rows.items()}


def mlp(weights, x):
    """The outputs of layers of ReLUs, by NumPy, in 64 bits. weights: kernels and biases in turn."""
    *hidden, kernel, bias = (np.asarray(weight, np.float64) for weight in weights)
    for w, b in zip(hidden[::2], hidden[1::2], strict=True):
        x = np.maximum(x @ w + b, 0)
    return x @ kernel + bias


@pytest.mark.parametrize("cls", [al.DQN, al.QRDQN])
def test_a_subclass_may_change_targets_alone(cls):
    """No gradient passes through them: these, 1 above the values, would have the opposite of the values' own."""

    def target_values(self, models, minibatch):
        return self.chosen_values(models, minibatch) + 1.0

    kind = dataclasses.dataclass(frozen=True, kw_only=True)(type("Above", (cls,), {"target_values": target_values}))
    learner = make_learner(kind(**OFTEN, max_grad_norm=10.0))
    assert learner.update(batch(learner))["td_error"] == pytest.approx(1.0, abs=1e-5)
    assert learner.update(batch(learner))["gradient_norm"] > 0.1


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_function", ["huber", "squared"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_dqn_is_that_of_the_paper(double, loss_function, masked):
    learner = make_learner(dqn(double=double, loss_function=loss_function))
    models, rows = models_and_minibatch(learner)
    rng = np.random.default_rng(2)
    rows["reward"] = rows["reward"] * 3
    rows["weight"] = rng.random(32).astype(np.float32)
    if masked:
        rows["next_action_mask"] = np.eye(2, dtype=bool)[rng.integers(0, 2, 32)]
    loss = learner.algorithm.loss(models, rows)

    online = [np.asarray(w.value) for w in learner.network.trainable_weights]
    target = [np.asarray(copy.value) for copy in models.targets][: len(online)]
    q, following = (mlp(online, rows["observation"]), mlp(target, rows["next_observation"]))
    preferred = mlp(online, rows["next_observation"]) if double else following
    preferred = np.where(rows.get("next_action_mask", True), preferred, -np.inf)
    best = following[np.arange(32), preferred.argmax(axis=1)]
    error = rows["reward"] + rows["discount"] * best - q[np.arange(32), rows["action"]]
    huber = np.where(np.abs(error) < 1, 0.5 * error**2, np.abs(error) - 0.5)
    expected = np.mean(rows["weight"] * (huber if loss_function == "huber" else 0.5 * error**2))
    assert np.abs(error).max() > 1 > np.abs(error).min()
    np.testing.assert_allclose(float(loss.value), expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(loss.outputs["error"]), error, rtol=1e-4, atol=1e-5)


def squashed(parameters, noise):
    """tanh of a Gaussian and its log-density within -1 and 1, by NumPy: `[N, d]`, `[N]`."""
    mean, log_std = np.split(parameters, 2, axis=1)
    u = mean + np.exp(np.clip(log_std, -20, 2)) * noise
    density = -0.5 * noise**2 - np.clip(log_std, -20, 2) - 0.5 * math.log(2 * math.pi) - np.log(1 - np.tanh(u) ** 2)
    return np.tanh(u), density.sum(axis=1)


def outputs_of(network, observation):
    return np.asarray(network(observation)["parameters"], np.float64)


@pytest.mark.parametrize("ent_coef", ["auto_0.5", 0.2])
def test_the_losses_of_sac_are_those_of_the_paper(ent_coef):
    learner = make_learner(sac(ent_coef=ent_coef))
    models, rows = models_and_minibatch(learner)
    groups = {group.name: group for group in learner.algorithm.groups()}
    critic_loss = groups[CRITICS].loss(models, tensors(rows))
    first, second = np.split(rows["noise"].astype(np.float64), 2, axis=1)
    weight = 0.5 if ent_coef == "auto_0.5" else 0.2

    critics = [[np.asarray(w.value) for w in critic.weights] for critic in learner.critics]
    copies = [np.asarray(copy.value) for copy in models.targets]
    copies = [copies[: len(critics[0])], copies[len(critics[0]) :]]

    def values(weights, observation, action):
        return np.stack([mlp(w, np.concatenate([observation, action], axis=1))[:, 0] for w in weights])

    action, log_prob = squashed(outputs_of(learner.network, rows["next_observation"]), first)
    following = values(copies, rows["next_observation"], action).min(axis=0) - weight * log_prob
    target = rows["reward"] + rows["discount"] * following
    error = target - values(critics, rows["observation"], np.tanh(rows["action"].astype(np.float64)))
    np.testing.assert_allclose(float(critic_loss.value), 0.5 * np.mean(error**2, axis=1).sum(), rtol=1e-4)

    rows |= critic_loss.outputs
    policy_loss = groups[NETWORK].loss(models, tensors(rows))
    action, log_prob = squashed(outputs_of(learner.network, rows["observation"]), second)
    expected = np.mean(weight * log_prob - values(critics, rows["observation"], action).min(axis=0))
    np.testing.assert_allclose(float(policy_loss.value), expected, rtol=1e-4, atol=1e-5)
    assert float(policy_loss.metrics["entropy"]) == pytest.approx(-log_prob.mean(), rel=1e-4)

    if ent_coef == 0.2:
        assert list(groups) == [CRITICS, NETWORK]
        return
    temperature = groups["log_ent_coef"].loss(models, tensors({**rows, **policy_loss.outputs}))
    np.testing.assert_allclose(float(temperature.value), -math.log(0.5) * (log_prob - 3).mean(), rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_the_losses_of_sac_on_choices_are_those_of_the_paper(masked):
    """Expectations are sums over all choices (arXiv:1910.07207, eq. 10 to 12), of which the third may be forbidden."""
    learner = make_learner(sac(ent_coef="auto_0.5"), Discrete(3))
    models, rows = models_and_minibatch(learner)
    rng, allowed = np.random.default_rng(2), {}
    for name in ("action_mask", "next_action_mask") if masked else ():
        allowed[name] = rows[name] = np.stack([np.ones(32, bool), np.ones(32, bool), rng.random(32) < 0.5], axis=1)
    groups = {group.name: group for group in learner.algorithm.groups()}
    critic_loss = groups[CRITICS].loss(models, tensors(rows))
    critics = [[np.asarray(w.value) for w in critic.weights] for critic in learner.critics]
    copies = [np.asarray(copy.value) for copy in models.targets]
    copies = [copies[: len(critics[0])], copies[len(critics[0]) :]]

    def policy(observation, mask):
        odds = np.exp(outputs_of(learner.network, observation)) * allowed.get(mask, 1.0)
        probability = odds / odds.sum(axis=1, keepdims=True)
        return probability, (probability * np.log(np.where(probability > 0, probability, 1.0))).sum(axis=1)

    def least(weights, observation):
        return np.min([mlp(w, observation) for w in weights], axis=0)

    following, log_prob = policy(rows["next_observation"], "next_action_mask")
    following = (following * least(copies, rows["next_observation"])).sum(axis=1) - 0.5 * log_prob
    now = np.stack([mlp(w, rows["observation"])[np.arange(32), rows["action"]] for w in critics])
    error = rows["reward"] + rows["discount"] * following - now
    np.testing.assert_allclose(float(critic_loss.value), 0.5 * np.mean(error**2, axis=1).sum(), rtol=1e-4)

    policy_loss = groups[NETWORK].loss(models, tensors(rows | critic_loss.outputs))
    probability, log_prob = policy(rows["observation"], "action_mask")
    expected = np.mean(0.5 * log_prob - (probability * least(critics, rows["observation"])).sum(axis=1))
    np.testing.assert_allclose(float(policy_loss.value), expected, rtol=1e-4, atol=1e-5)
    temperature = groups["log_ent_coef"].loss(models, tensors({**rows, **policy_loss.outputs}))
    wanted = 0.98 * np.log(allowed["action_mask"].sum(axis=1) if masked else 3)
    np.testing.assert_allclose(float(temperature.value), -math.log(0.5) * (log_prob + wanted).mean(), rtol=1e-3)


def test_the_losses_of_td3_are_those_of_the_paper():
    learner = make_learner(td3(target_policy_noise=2.0))
    models, rows = models_and_minibatch(learner)
    critic_group, policy_group = learner.algorithm.groups()
    count = len(learner.network.weights)
    copies = [np.asarray(copy.value) for copy in models.targets]
    half = (len(copies) - count) // 2
    critics = [copies[count : count + half], copies[count + half :]]

    def values(weights, observation, action):
        return np.stack([mlp(w, np.concatenate([observation, action], axis=1))[:, 0] for w in weights])

    following = np.tanh(mlp(copies[: count - 1], rows["next_observation"]))
    noise = np.clip(2.0 * rows["noise"].astype(np.float64), -0.5, 0.5)
    assert (np.abs(noise) == 0.5).any()
    following = values(critics, rows["next_observation"], np.clip(following + noise, -1, 1)).min(axis=0)
    centre, radius = (BOUNDS.high + BOUNDS.low) / 2, (BOUNDS.high - BOUNDS.low) / 2
    taken = np.clip((rows["action"] - centre) / radius, -1, 1)
    now = [[np.asarray(w.value) for w in critic.weights] for critic in learner.critics]
    error = rows["reward"] + rows["discount"] * following - values(now, rows["observation"], taken)
    loss = critic_group.loss(models, tensors(rows))
    np.testing.assert_allclose(float(loss.value), np.mean(error**2, axis=1).sum(), rtol=1e-4)

    online = [np.asarray(w.value) for w in learner.network.weights][: count - 1]
    action = np.tanh(mlp(online, rows["observation"]))
    expected = -values(now[:1], rows["observation"], action).mean()
    np.testing.assert_allclose(float(policy_group.loss(models, tensors(rows)).value), expected, rtol=1e-4, atol=1e-6)
    assert (critic_group.every, policy_group.every) == (1, 2)


def test_the_losses_of_iql_are_those_of_the_paper():
    learner = make_learner(al.IQL(**OFTEN, expectile=0.8, temperature=4.0, max_weight=3.0))
    models, rows = models_and_minibatch(learner)
    rows["action"] = rng_actions = np.random.default_rng(5).uniform(BOUNDS.low, BOUNDS.high, (32, 3)).astype(np.float32)
    network_group, critic_group = learner.algorithm.groups()
    half = len(models.targets) // 2
    copies = [np.asarray(copy.value) for copy in models.targets]
    copies = [copies[:half], copies[half:]]

    def values(weights, action):
        inputs = np.concatenate([rows["observation"], action], axis=1)
        return np.stack([mlp(w, inputs)[:, 0] for w in weights])

    centre, radius = (BOUNDS.high + BOUNDS.low) / 2, (BOUNDS.high - BOUNDS.low) / 2
    taken = (rng_actions - centre) / radius
    parameters, value = (np.asarray(each, np.float64) for each in learner.network(rows["observation"]))
    advantage = values(copies, taken).min(axis=0) - value[:, 0]
    expectile = np.mean(np.where(advantage < 0, 0.2, 0.8) * advantage**2)
    mean, log_std = np.split(parameters, 2, axis=1)
    assert ((mean > BOUNDS.low) & (mean < BOUNDS.high)).all()
    normal = (rng_actions - mean) / np.exp(log_std)
    log_prob = (-0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=1)
    weight = np.minimum(np.exp(4.0 * advantage), 3.0)
    assert weight.max() == 3.0 > weight.min()
    loss = network_group.loss(models, tensors(rows))
    np.testing.assert_allclose(float(loss.value), expectile - np.mean(weight * log_prob), rtol=1e-4)

    following = np.asarray(learner.network(rows["next_observation"])[1], np.float64)[:, 0]
    now = [[np.asarray(w.value) for w in critic.weights] for critic in learner.critics]
    error = rows["reward"] + rows["discount"] * following - values(now, taken)
    loss = critic_group.loss(models, tensors(rows))
    np.testing.assert_allclose(float(loss.value), np.mean(error**2, axis=1).sum(), rtol=1e-4)


@pytest.mark.parametrize("space", [BOUNDS, TWO_ACTIONS], ids=["bounds", "choices"])
def test_the_loss_of_behaviour_cloning(space):
    """Squared errors of scaled actions where they have bounds, else minus the log-probability of what was chosen."""
    learner = make_learner(al.BC(**OFTEN), space)
    models, rows = models_and_minibatch(learner)
    loss = float(learner.algorithm.loss(models, tensors(rows)).value)
    outputs = learner.network(rows["observation"])
    if space is BOUNDS:
        centre, radius = (BOUNDS.high + BOUNDS.low) / 2, (BOUNDS.high - BOUNDS.low) / 2
        mean = np.asarray(outputs["parameters"], np.float64)[:, :3]
        error = (mean - centre) / radius - np.clip((rows["action"] - centre) / radius, -1, 1)
        expected = np.mean((error**2).sum(axis=1))
    else:
        logits = np.asarray(outputs[0], np.float64)
        log_prob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected = -log_prob[np.arange(32), rows["action"]].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_iql_needs_a_value():
    network = al.default_network(VECTOR, BOUNDS, action_noise=0.1, **SMALL)
    learner = al.Learner(network, al.IQL(**OFTEN), action_space=BOUNDS, observation_space=VECTOR, total_steps=100)
    with pytest.raises(ValueError, match=r"The network's dict lacks \['value'\], which this algorithm needs"):
        learner.update(random_trajectory(BOUNDS))


def gradients_of(loss, variables):
    from actor_learner.learner import backend

    found, _ = backend.gradients(lambda: (loss(), {}), variables, variables)
    return [np.asarray(gradient) for gradient in found]


@pytest.mark.parametrize(
    ("columns", "steps", "updates_per_step"),
    [([1, 16, 7, 16], 8, 0.1), ([7] * 5, 5, 2.5), pytest.param([32] * 5, 1, 0.25, marks=pytest.mark.thorough)],
)
def test_gradient_steps_are_those_that_are_due_whatever_the_batches_are(columns, steps, updates_per_step):
    learner = make_learner(dqn(learning_starts=50, updates_per_step=updates_per_step, minibatch_size=4))
    for seed, count in enumerate(columns):
        metrics = learner.update(batch(learner, seed, steps=steps, columns=count, invalid_rate=0.1))
        assert metrics["gradient_steps"] == math.floor(max(0, learner.env_steps - 50) * updates_per_step)
        assert metrics["gradient_steps_owed"] == 0
    assert trace_count(learner) == 1


def test_epsilon_is_a_published_weight_that_follows_its_schedule_and_losses_come_once_learning_starts():
    algorithm = dqn(learning_starts=32, exploration_fraction=0.5, exploration_final_eps=0.2)
    learner = make_learner(algorithm, total_steps=320)
    weight = next(w for w in learner.network.weights if w.name == "epsilon")
    results = []
    for seed in range(6):
        results.append(learner.update(batch(learner, seed)))
        epsilon = results[-1]["epsilon"]
        assert epsilon == pytest.approx(float(np.asarray(weight.value)[0]))
        assert learner.flat_weights()[-1] == pytest.approx(epsilon)
    assert [round(result["epsilon"], 6) for result in results] == [0.84, 0.68, 0.52, 0.36, 0.2, 0.2]
    assert "loss" not in results[0]
    assert {"loss", "q_value", "td_error", "gradient_norm"} <= results[1].keys()
    assert set(learner.trace(batch(learner))) == results[1].keys()


def test_targets_move_at_multiples_of_their_interval():
    learner = make_learner(dqn(target_update_interval=64, tau=0.5))
    start = [np.asarray(w.value) for w in learner.network.trainable_weights]
    learner.update(batch(learner, 0))  # 32 env steps
    once = [np.asarray(w.value) for w in learner.network.trainable_weights]
    targets = [np.asarray(copy.value) for copy in learner._models.targets]
    for copy, value in zip(targets, start, strict=False):
        np.testing.assert_array_equal(copy, value)
    learner.update(batch(learner, 1))  # 64
    for copy, old, new in zip(learner._models.targets, start, once, strict=False):
        np.testing.assert_allclose(np.asarray(copy.value), (old + new) / 2, rtol=1e-6, atol=1e-7)
    assert learner.algorithm.move_before_update(0, 64 * 3) == pytest.approx(1 - 0.5**3)


@pytest.fixture(scope="module")
def trained(without_xla):
    """A function that gives a learner with a few batches in its buffer; tests may go on with it."""
    makers = {"dqn": lambda: dqn(prioritized=True, double=True, n_step=3), "sac": sac_of_one_step, "td3": td3}
    makers["noisy critics"] = sac_of_one_step
    makers["sac on choices"] = sac_of_one_step
    makers["qrdqn"] = lambda: al.QRDQN(**OFTEN, prioritized=True, quantiles=5)
    makers["tqc"] = lambda: al.TQC(**OFTEN, quantiles=5, num_critics=3)
    makers["crossq"] = lambda: al.CrossQ(**{**OFTEN, "updates_per_step": 1 / 32}, critic_units=8)

    @functools.cache
    def learner_of(name):
        critics, space = noisy_critic if "noisy" in name else None, TWO_ACTIONS if "choices" in name else None
        learner = make_learner(makers[name](), space, critics=critics)
        for seed in range(2):
            learner.update(batch(learner, seed))
        return learner

    return learner_of


def sac_of_one_step():
    return sac(updates_per_step=1 / 32, tau=0.25)


def noisy_critic(observation_space, action_space, *between):
    inputs = keras.Input(observation_space.shape), keras.Input(action_space.shape)
    x = layers.Concatenate()(inputs)
    for layer in (layers.Dense(8), *between, layers.Dropout(0.5), layers.GaussianNoise(0.1), layers.Dense(1)):
        x = layer(x)
    return keras.Model(inputs, x)


KINDS = [
    "dqn",
    "sac",
    "noisy critics",
    "sac on choices",
    "qrdqn",
    "crossq",
    *(pytest.param(name, marks=pytest.mark.thorough) for name in ("td3", "tqc")),
]


@pytest.mark.parametrize("name", KINDS)
def test_an_update_that_is_not_finite_is_undone_and_its_rows_are_never_drawn(trained, name):
    learner = trained(name)
    state = [np.asarray(v.value) for v in learner._replay_update.state]
    counts = len(learner.buffer), learner.updates, learner.gradient_steps
    env_steps = learner.env_steps
    broken = batch(learner, 2, columns=64)  # most of the buffer
    metrics = learner.update(broken._replace(reward=np.full_like(broken.reward, 1e38)))
    assert metrics["undone"] == 1.0
    assert learner.not_finite
    assert (len(learner.buffer), learner.updates, learner.gradient_steps) == counts
    assert learner.env_steps == env_steps + broken.valid.sum()
    for variable, value in zip(learner._replay_update.state, state, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), value)
    assert "undone" not in learner.update(batch(learner, 3))
    assert learner.updates == counts[1] + 1


def test_rows_that_break_a_later_update_are_never_drawn_again():
    learner = make_learner(dqn(learning_starts=33, updates_per_step=1.0, loss_function="squared"))
    broken = batch(learner, 0)
    broken.reward[3, 2] = 3e38
    assert "undone" not in learner.update(broken)  # it isn't learned from yet
    results = [learner.update(batch(learner, seed)) for seed in range(1, 8)]
    assert any("undone" in result for result in results)
    assert "undone" not in results[-1]
    assert usable_rewards(learner.buffer).max() < 1e38


@pytest.mark.parametrize("name", KINDS)
def test_a_loaded_learner_goes_on_as_the_saved_one_would_have(trained, name, tmp_path, monkeypatch):
    """It makes no default critics, which may be impossible: for images whose channel axis a run gave."""
    learner = trained(name)
    learner.save(tmp_path / "saved")
    monkeypatch.setattr("actor_learner.learner.critics.default_critic", lambda *_, **__: pytest.fail("made"))
    again = al.Learner.load(tmp_path / "saved")
    assert isinstance(again, ReplayLearner)
    assert learner.update(batch(learner, 9)) == again.update(batch(again, 9))
    for one, other in zip(learner._replay_update.state, again._replay_update.state, strict=True):
        np.testing.assert_array_equal(np.asarray(one.value), np.asarray(other.value))


def test_a_loaded_learner_s_calls_take_as_many_steps_as_the_saved_one_s(tmp_path):
    """How many decides which rows are drawn together, and where targets and schedules move."""
    learner = make_learner(dqn(updates_per_step=0.125))
    for seed in range(2):
        learner.update(batch(learner, seed))
    learner.save(tmp_path / "saved")
    again = al.Learner.load(tmp_path / "saved")
    assert learner.learn(23) == again.learn(23)
    np.testing.assert_array_equal(learner.flat_weights(), again.flat_weights())


class OwnTD3(al.TD3):
    """TD3 by another name."""


def test_another_learning_rate_takes_the_place_of_the_optimizer_s(tmp_path):
    learner = make_learner(td3())
    learner.update(batch(learner))
    learner.optimizer.learning_rate = 0.25  # as a callback does
    learner.save(tmp_path / "saved")
    own = OwnTD3(**OFTEN, learning_rate=0.0)  # of whose class a file holds nothing
    for given, expected in ((td3(), 0.25), (own, 0.0), (td3(learning_rate="linear_0.5"), 0.5)):
        again = al.Learner.load(tmp_path / "saved", algorithm=given)
        before = [critic.get_weights()[0] for critic in again.critics]
        assert again.update(batch(again, 1))["learning_rate"] == pytest.approx(expected, rel=0.01)
        same = [np.array_equal(critic.get_weights()[0], one) for critic, one in zip(again.critics, before, strict=True)]
        assert same == [expected == 0.0] * 2


def test_a_loaded_learner_takes_the_first_temperature_that_another_algorithm_gives(tmp_path):
    learner = make_learner(sac(learning_rate=1e-6))
    learner.update(batch(learner))
    learner._models.variables["log_ent_coef"].assign(np.log(0.9))
    learner.save(tmp_path / "saved")
    for given, expected in (("auto", 0.9), ("auto_0.5", 0.5), (0.2, 0.2)):
        again = al.Learner.load(tmp_path / "saved", algorithm=sac(ent_coef=given, learning_rate=1e-6))
        assert again.update(batch(again, 1))["ent_coef"] == pytest.approx(expected, rel=1e-3)
    again.save(tmp_path / "again")
    assert al.Learner.load(tmp_path / "again").gradient_steps == again.gradient_steps


def test_without_its_buffer_a_loaded_learner_first_collects(tmp_path):
    learner = make_learner(dqn(updates_per_step=1.0))
    learner.env_steps = learner.gradient_steps = 640
    again = without_buffer(learner, tmp_path / "saved")
    assert again.env_steps == 640
    found = [again.update(batch(again, seed))["gradient_steps"] for seed in (30, 31, 32)]
    assert found == [640, 640, 640 + 96 - 64]


def test_a_damaged_buffer_is_filled_anew(trained, tmp_path):
    learner = trained("dqn")
    damages = {"SHA-256": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x"), "replay-buffer.json": None}
    for named, damage in damages.items():
        learner.save(tmp_path / named)
        if damage is None:
            (tmp_path / named / "replay-buffer.json").unlink()
        else:
            damage(next((tmp_path / named).glob("replay-0*.npz")))
        with pytest.warns(UserWarning, match=f"The replay buffer is filled anew: .*{named}"):
            again = al.Learner.load(tmp_path / named)
        assert again.buffer is None
        assert again._refills


def test_another_rate_owes_nothing_of_the_past(tmp_path):
    learner = make_learner(dqn(updates_per_step=0.25))
    learner.make_buffer(8, action_masks=False).add(batch(learner, 0))
    learner.env_steps, learner.gradient_steps = 320, 80
    learner.save(tmp_path / "saved")
    again = al.Learner.load(tmp_path / "saved", algorithm=dqn(updates_per_step=2.0))
    assert again.update(batch(again, 30))["gradient_steps"] == 80 + 64


def test_what_is_owed_at_once_is_bounded():
    learner = make_learner(dqn(updates_per_step=1.0))
    for seed in range(10):  # nothing of these can be drawn
        learner.update(batch(learner, seed))
        learner.buffer.discard(np.arange(learner.buffer.next_column))
        learner.gradient_steps = 0
    metrics = learner.update(batch(learner, 11))
    assert metrics["gradient_steps"] == 4 * 32


def test_statistics_of_observations_are_of_each_batch_s_valid_rows_and_undone_where_they_overflow():
    network = al.default_network(VECTOR, TWO_ACTIONS, **SMALL, distribution="greedy", normalize_observation=True)
    learner = al.Learner(network, dqn(), action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=1000)
    batches = [batch(learner, seed, invalid_rate=0.3) for seed in range(3)]
    assert not any("undone" in learner.update(each) for each in batches)
    layer, copies = network.get_layer("observation_normalization"), learner._models.targets
    seen = np.concatenate([each.observation[:-1][each.valid] for each in batches])
    np.testing.assert_allclose(np.asarray(layer.mean.value), seen.mean(axis=0), rtol=1e-4, atol=1e-5)
    assert float(np.asarray(layer.count.value)) == len(seen)
    assert any(np.array_equal(np.asarray(copy.value), np.asarray(layer.mean.value)) for copy in copies)

    before = [np.asarray(v.value) for v in [*layer.variables, *copies]]
    broken = batch(learner, 1)
    broken.observation[2, 1] = 1e30
    assert learner.update(broken)["undone"] == 1.0
    assert learner.not_finite == ("statistics",)
    for variable, value in zip([*layer.variables, *copies], before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), value)


def test_critics_see_observations_as_the_network_does():
    """Default ones do; those of one's own are warned of, unless they normalize, too, or by batches."""

    def learner_of(algorithm, critics=None):
        options = algorithm.network_options(action_structure(BOUNDS))
        network = al.default_network(VECTOR, BOUNDS, **SMALL, **options, normalize_observation=True)
        return al.Learner(network, algorithm, action_space=BOUNDS, observation_space=VECTOR, critics=critics)

    for algorithm in (sac(), al.CrossQ(**OFTEN)):
        learner = learner_of(algorithm)
        assert "undone" not in learner.update(batch(learner))
        counts = [float(layer.count.numpy()) for one in learner.critics for layer in normalization_layers(one)]
        assert counts == [32.0] * 2
    own = learner_of(sac(), lambda *spaces: al.default_critic(*spaces, hidden_sizes=(8,)))
    with pytest.warns(
        UserWarning, match="The network normalizes observations, and critics don't: begin them with al.Ob"
    ):
        own.update(batch(own))
    by_batches = lambda *spaces: al.default_critic(*spaces, hidden_sizes=(8,), batch_norm=True)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        learner = learner_of(al.CrossQ(**OFTEN), by_batches)
        assert "undone" not in learner.update(batch(learner))


def test_new_critics_begin_with_the_statistics_of_a_network_that_has_some():
    network = al.default_network(VECTOR, BOUNDS, **SMALL, action_noise=0.1, normalize_observation=True)
    (layer,) = normalization_layers(network)
    layer.mean.assign(np.arange(4.0))
    layer.variance.assign(np.arange(1.0, 5.0))
    layer.count.assign(100.0)
    before = [np.asarray(variable.value) for variable in layer.variables]
    learner = al.Learner(network, td3(), action_space=BOUNDS, observation_space=VECTOR, total_steps=1000)
    learner.make_buffer(8, action_masks=False).add(batch(learner))
    learner.learn(1)
    for each in (layer, *(one for critic in learner.critics for one in normalization_layers(critic))):
        for variable, value in zip(each.variables, before, strict=True):
            np.testing.assert_array_equal(np.asarray(variable.value), value)


def test_critics_of_images_do_not_normalize_though_the_network_does():
    space = Box(0, 255, (16, 16, 1), np.uint8)
    x = keras.Input(space.shape)
    hidden = layers.Flatten()(al.ObservationNormalization()(ops.cast(x, "float32")))
    outputs = al.ActionDistribution("gaussian")(al.LogStd(trainable=False)(layers.Dense(3, "tanh")(hidden)))
    learner = al.Learner(keras.Model(x, {"parameters": outputs}), td3(), action_space=BOUNDS, observation_space=space)
    assert not [layer for critic in learner.critics for layer in normalization_layers(critic)]


def test_statistics_that_the_network_and_a_critic_share_count_each_row_once():
    normalization = al.ObservationNormalization()
    x = keras.Input((4,))
    head = layers.Dense(2)
    network = keras.Model(x, {"parameters": al.ActionDistribution("gaussian")(al.LogStd()(head(normalization(x))))})

    def critic(observation_space, action_space):
        seen, action = keras.Input((4,)), keras.Input((2,))
        value = layers.Dense(1)(layers.concatenate([normalization(seen), normalization(seen), action]))
        return keras.Model([seen, action], value)

    space = Box(-1, 1, (2,))
    learner = al.Learner(network, td3(), action_space=space, observation_space=VECTOR, critics=critic)
    learner.update(batch(learner))
    assert float(np.asarray(normalization.count.value)) == 32


def test_a_network_with_dropout_has_targets():
    inputs = keras.Input((4,))
    values = layers.Dense(2)(layers.Dropout(0.5, seed=1)(inputs))
    network = keras.Model(inputs, (al.ActionDistribution("greedy")(values), ops.max(values, axis=-1)))
    learner = al.Learner(network, dqn(), action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=1000)
    with pytest.warns(UserWarning, match="dropout does nothing"):
        assert math.isfinite(learner.update(batch(learner))["loss"])


class CountedLearner(ReplayLearner):
    """A learner of one's own."""


def test_a_subclass_of_a_learner_is_itself():
    network = al.default_network(VECTOR, TWO_ACTIONS, **SMALL, distribution="greedy")
    arguments = {"action_space": TWO_ACTIONS, "observation_space": VECTOR, "total_steps": 100}
    assert type(CountedLearner(network, dqn(), **arguments)) is CountedLearner

    class OnPolicy(al.Learner):
        pass

    with pytest.raises(TypeError, match="OnPolicy can't learn by DQN: subclass ReplayLearner for it"):
        OnPolicy(network, dqn(), **arguments)


@pytest.mark.parametrize(
    ("make", "space"),
    [
        (td3, TWO_ACTIONS),
        (al.TQC, TWO_ACTIONS),
        (lambda: al.TQC(quantiles=1, dropped_quantiles=0), TWO_ACTIONS),
        (sac, MultiDiscrete([2, 3])),
        (sac, Dict({"x": TORQUES, "y": TWO_ACTIONS})),
        (td3, VECTOR),
    ],
)
def test_actions_without_bounds_are_refused(make, space):
    squashed = isinstance(space, Dict)
    network = al.default_network(VECTOR, space, **SMALL, distribution="squashed" if squashed else "gaussian")
    with pytest.raises(ValueError, match="needs actions that are Boxes with finite bounds"):
        al.Learner(network, make(), action_space=space, observation_space=VECTOR)


@pytest.mark.parametrize("make", [dqn, *(pytest.param(make, marks=pytest.mark.thorough) for make in (td3,))])
def test_a_call_of_many_gradient_steps_is_as_many_calls_of_one(make, monkeypatch):
    """Of the same rows: what moves targets, delays policies or draws noise counts gradient steps, not calls.

    Metrics of delayed steps are means of those that were taken.
    """

    def run(most_steps):
        monkeypatch.setattr(replay, "_MAX_STEPS", most_steps)
        learner = make_learner(make(updates_per_step=1.0))
        calls = []

        def sample(buffer, count, _):
            first = sum(calls) % 32
            calls.append(count)
            rows = np.random.default_rng(0).choice(np.flatnonzero(buffer._sampler.usable), (32, 16))
            monkeypatch.setattr(buffer._sampler, "draw", lambda *_: rows[first : first + count].reshape(-1))
            return buffer.sample(16, count)

        monkeypatch.setattr(learner, "_sample", sample)
        results = [learner.update(batch(learner, seed=seed)) for seed in range(2)]
        models = learner._build_models()
        variables = [*models.targets, *models.variables.values(), *(w for c in learner.critics for w in c.weights)]
        return results, [learner.flat_weights(), *(np.asarray(variable.value) for variable in variables)], calls

    whole, split = run(64), run(1)
    assert whole[2] == [32, 32]
    assert split[2] == [1] * 64
    for one, other in zip(whole[0], split[0], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    for one, other in zip(whole[1], split[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_critics_of_one_s_own_and_composite_spaces():
    space = Dict({"a": VECTOR, "b": Box(-1, 1, (2,), np.float32)})
    actions = Dict({"x": TORQUES, "y": BOUNDS})

    def make(observation_space, action_space):
        inputs = {name: keras.Input(part.shape, name=name) for name, part in observation_space.items()}
        action = keras.Input((6,), name="action")
        joined = layers.Concatenate()([*inputs.values(), action])
        return keras.Model((inputs, action), layers.Dense(1)(layers.Dense(4, "relu")(joined)))

    learner = make_learner(sac(), actions, observation_space=space, critics=make)
    metrics = [learner.update(batch(learner, seed)) for seed in range(2)][-1]
    assert math.isfinite(metrics["critic_loss"])
    assert len(learner.critics) == 2


def critic_values(learner, target):
    """Values of the same observation and action, in 16 rows."""
    observation, action = ops.ones((16, 4)), ops.zeros((16, 3))
    return np.asarray(learner._build_models().critic_values(observation, action, target=target))


@pytest.mark.parametrize("target", [False, True])
def test_dropout_and_noise_of_critics_are_drawn_anew_at_each_call(target):
    learner = make_learner(sac(), critics=noisy_critic)
    values = [critic_values(learner, either) for either in (target, not target, target)]
    assert len(np.unique(values)) == np.size(values)
    inputs = np.ones((16, 4), np.float32), np.zeros((16, 3), np.float32)
    assert len(np.unique(np.asarray(learner.critics[0](inputs)))) == 1, "the model is as it was"


def test_the_other_layers_of_critics_that_depend_on_training_are_named():
    def make(*spaces):
        norm = layers.SpectralNormalization(layers.Dense(8), name="norm")
        return noisy_critic(*spaces, layers.BatchNormalization(name="batches"), norm)

    learner = make_learner(sac(), critics=make)
    with pytest.warns(UserWarning, match=r"Layers \['batches', 'norm'\] .*, in critic"):
        values = critic_values(learner, False)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(learner.critics[0].get_layer("batches").moving_mean, np.zeros(8))


class Subclassed(keras.Model):
    """A Q-network that Keras can't rebuild from its file."""

    def __init__(self):
        super().__init__()
        self.dense, self.policy = layers.Dense(2), al.ActionDistribution("greedy")

    def call(self, observation):
        values = self.dense(observation)
        return self.policy(values), ops.max(values, axis=-1)


def test_a_subclassed_network_has_targets_too():
    learner = al.Learner(Subclassed(), dqn(), action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=100)
    results = [learner.update(batch(learner, seed)) for seed in range(3)]
    assert all(math.isfinite(result["loss"]) for result in results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation_space": None}, "`observation_space` must be given for DQN"),
        ({"devices": 2}, "`devices` must be 1"),
        ({"critics": lambda o, a: None}, "`critics` is for algorithms that have critics"),
        ({"buffer": 3}, "`buffer` must be an al.ReplayBuffer. Received: buffer=3"),
        ({"buffer": "of another gamma"}, r"with gamma=0.99\. Received: a buffer with gamma=0.5"),
        ({"total_steps": None}, "`exploration_fraction` is about parts of a run, which needs `total_steps`"),
    ],
)
def test_arguments_that_do_not_fit(change, message):
    if change.get("buffer") == "of another gamma":
        change = {"buffer": al.ReplayBuffer(VECTOR, TWO_ACTIONS, 1000, gamma=0.5)}
    network = al.default_network(VECTOR, TWO_ACTIONS, **SMALL, distribution="greedy")
    arguments = {"action_space": TWO_ACTIONS, "observation_space": VECTOR, "total_steps": 100, **change}
    with pytest.raises(ValueError, match=message):
        al.Learner(network, dqn(), **arguments)


def test_networks_and_critics_that_do_not_fit():
    plain = al.default_network(VECTOR, TWO_ACTIONS, **SMALL)
    with pytest.raises(ValueError, match=r"DQN needs a network whose `parameters` are values"):
        al.Learner(plain, dqn(), action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=10)
    remembering = al.default_network(VECTOR, TWO_ACTIONS, **SMALL, distribution="greedy", memory="gru")
    with pytest.raises(ValueError, match="DQN can't learn a network with memory"):
        al.Learner(remembering, dqn(), action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=10)

    def two_values(observation_space, action_space):
        inputs = keras.Input(observation_space.shape), keras.Input((3,))
        return keras.Model(inputs, layers.Dense(2)(layers.Concatenate()(inputs)))

    learner = make_learner(sac(), critics=two_values)
    with pytest.raises(ValueError, match=r"A critic must return a value .* Received: shape \(2, 2\)"):
        learner.update(batch(learner))
    of_choices = make_learner(sac(), TWO_ACTIONS, critics=lambda *spaces: al.default_critic(*spaces, outputs=2))
    with pytest.raises(ValueError, match=r"A critic must return 2 values, of each action, \[N, 2\]. Received: shape"):
        of_choices.update(batch(of_choices))
    greedy = al.default_network(VECTOR, TWO_ACTIONS, **SMALL, distribution="greedy")
    with pytest.raises(ValueError, match="SAC needs a network whose actions are squashed Gaussians"):
        al.Learner(greedy, sac(), action_space=TWO_ACTIONS, observation_space=VECTOR, total_steps=10)
    shared = al.default_critic(VECTOR, BOUNDS, hidden_sizes=(4,))
    for critics, message in (
        (lambda *spaces: shared, "sharing weights with the network or another critic"),
        (lambda: shared, "`critics` failed: "),
        (3, r"`critics` must be a function \(observation_space, action_space\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make_learner(sac(), critics=critics).update(batch(learner))
    with pytest.raises(ValueError, match="`trajectory` must be an actor_learner.Trajectory. Received: a NoneType"):
        learner.update(None)
    with pytest.raises(ValueError, match="`critics` is for off-policy algorithms"):
        al.Learner(plain, al.PPO(), action_space=TWO_ACTIONS, critics=two_values)


def buffer_of(**options):
    return al.ReplayBuffer(VECTOR, TWO_ACTIONS, 400, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: al.TrainConfig(algorithm=al.DQN(n_step=5), unroll_length=4), "`n_step` must be at most.*length=4"),
        (lambda: dqn(updates_per_step=-1), r"above 0: 1\.0 is what SB3 calls gradient_steps=-1"),
        (
            lambda: make_learner(dqn(updates_per_step=1e-12)),
            "`updates_per_step` must make a gradient step due.*_per_step=1e-12",
        ),
        (
            lambda: make_learner(dqn(prioritized=True), buffer=buffer_of(n_step=2, gamma=0.5)),
            "make it with n_step=1, gamma=0.99, priority_exponent=0.6. Received: a buffer with n_step=2, gamma=0.5, ",
        ),
        (
            lambda: make_learner(dqn(), buffer=buffer_of(unroll_length=8)).make_buffer(8, action_masks=True),
            "`buffer` must keep the masks that there are: make it with action_masks=True",
        ),
        (
            lambda: make_learner(dqn(n_step=5), buffer=buffer_of(n_step=5)).make_buffer(2, action_masks=False),
            "`n_step` must be at most `unroll_length`.*unroll_length=2",
        ),
    ],
)
def test_settings_that_contradict_one_another(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_masks_that_end_before_each_return_are_refused():
    rows = batch(make_learner(dqn()))
    steps, columns = rows.reward.shape
    learner = make_learner(dqn(n_step=steps))
    with pytest.raises(ValueError, match="`action_mask` must be .* where a return is as long as a batch"):
        learner.update(rows._replace(action_mask=np.ones((steps, columns, 2), bool)))


@pytest.mark.parametrize("size", [10**12, 10**9], ids=["its rows", "its activations"])
def test_a_minibatch_larger_than_memory_is_refused(size):
    """Rows have 52 bytes, and 10 units."""
    learner = make_learner(dqn(minibatch_size=size))
    with pytest.raises(MemoryError, match=rf"A minibatch doesn't fit into memory: .* minibatch_size={size}$"):
        learner.update(batch(learner))


def breaks_in_call(number, learner, monkeypatch):
    """Let the learner take 8 gradient steps in a call, and find NaN in one of its calls."""
    monkeypatch.setattr(replay, "_MAX_STEPS", 8)
    calls = []

    def sample(buffer, count, importance, draw=learner._sample):
        calls.append(count)
        rows = draw(buffer, count, importance)
        return rows._replace(reward=np.full_like(rows.reward, np.nan)) if len(calls) == number else rows

    monkeypatch.setattr(learner, "_sample", sample)


def put_targets_one_above(learner):
    learner._build_models()
    for copy in learner._models.targets:
        copy.assign(np.asarray(copy.value) + 1.0)


def check_targets_are_above(learner, distance, rtol):
    for copy, weight in zip(learner._models.targets, learner.network.trainable_weights, strict=False):
        np.testing.assert_allclose(np.asarray(copy.value) - np.asarray(weight.value), distance, rtol=rtol)


def test_an_update_of_several_calls_is_undone_as_a_whole_and_its_rows_stay(monkeypatch):
    network = al.default_network(
        VECTOR, BOUNDS, **SMALL, distribution="squashed", state_dependent_std=True, normalize_observation=True
    )
    learner = al.Learner(network, sac(updates_per_step=1.0), action_space=BOUNDS, observation_space=VECTOR)
    breaks_in_call(7, learner, monkeypatch)
    learner.update(batch(learner))
    state = [(variable, np.asarray(variable.value)) for variable in learner._replay_update.state]
    rows = len(learner.buffer)
    assert learner.update(batch(learner, 1))["undone"] == 1.0
    for variable, before in state:
        np.testing.assert_array_equal(np.asarray(variable.value), before)
    assert (learner.gradient_steps, learner.env_steps) == (32, 64)
    assert len(learner.buffer) > rows + 16
    assert learner.update(batch(learner, 2))["gradient_steps"] == 96.0  # those of both batches


def test_delayed_steps_have_metrics_in_the_updates_that_take_them():
    learner = make_learner(td3(updates_per_step=1 / 32, max_grad_norm=1.0))  # a step in each update
    results = [learner.update(batch(learner, seed)) for seed in range(4)]
    assert ["policy_loss" in metrics for metrics in results] == [False, True, False, True]
    assert ["gradient_norm" in metrics for metrics in results] == [False, True, False, True]
    assert all("critic_loss" in metrics for metrics in results)


def without_buffer(learner, folder):
    write_folder_atomically(folder, lambda path: learner.write_checkpoint(path, None, with_buffer=False))
    return al.Learner.load(folder)


def test_a_refill_leaves_half_of_the_remaining_steps_to_learn_from(tmp_path):
    learner = make_learner(dqn(learning_starts=100, updates_per_step=1.0), total_steps=1200)
    learner.env_steps, learner.gradient_steps = 1024, 924
    again = without_buffer(learner, tmp_path / "saved")
    for seed in range(4):
        again.update(batch(again, seed))
    assert (again.env_steps, again.gradient_steps) == (1152, 924 + 128 - (1200 - 1024) // 2)


def test_a_new_buffer_of_a_loaded_learner_draws_by_the_learner_s_seed(tmp_path):
    again = without_buffer(make_learner(dqn(), seed=5), tmp_path / "saved")
    states = [
        made.make_buffer(8, action_masks=False).describe()["random_state"]
        for made in (again, make_learner(dqn(), seed=5), make_learner(dqn(), seed=6))
    ]
    assert states[0] == states[1] != states[2]


def test_targets_that_moved_in_a_batch_that_was_undone_later_do_not_move_again_with_a_smaller_one(monkeypatch):
    learner = make_learner(dqn(updates_per_step=1.0, tau=0.5, target_update_interval=8, learning_rate=0.0))
    breaks_in_call(3, learner, monkeypatch)
    put_targets_one_above(learner)
    moves = 32 // 8
    assert learner.update(batch(learner, 0))["undone"] == 1.0
    for seed, columns in ((1, 1), (2, 1), (3, 4)):  # to 8, 16 and 48 env steps
        assert "undone" not in learner.update(batch(learner, seed, columns=columns))
        moves = max(moves, learner.env_steps // 8)
        check_targets_are_above(learner, 0.5**moves, rtol=1e-4)


def test_a_buffer_takes_the_size_that_a_changed_algorithm_gives_it(tmp_path):
    learner = make_learner(dqn(buffer_size=400))
    buffer = learner.make_buffer(8, action_masks=False)
    for seed in range(20):
        buffer.add(batch(learner, seed))
    buffer.shrink(320)
    learner.save(tmp_path / "saved")
    sizes = {size: al.Learner.load(tmp_path / "saved", algorithm=dqn(buffer_size=size)) for size in (400, 160, 4000)}
    assert {size: again.buffer.capacity for size, again in sizes.items()} == {400: 320, 160: 160, 4000: 4000}
    assert len(sizes[160].buffer) < len(sizes[4000].buffer) == len(buffer)


def test_an_infinite_norm_clips_nothing():
    learner = make_learner(dqn(max_grad_norm=math.inf))
    before = learner.flat_weights()
    metrics = learner.update(batch(learner))
    assert "undone" not in metrics
    assert math.isfinite(metrics["gradient_norm"])
    assert not np.array_equal(before, learner.flat_weights())


@pytest.mark.parametrize("make", [dqn, sac])
def test_adam_by_name_is_the_algorithm_s_own(make):
    named, own = (algorithm.make_optimizer().get_config() for algorithm in (make(optimizer="adam"), make()))
    assert {**named, "name": ""} == {**own, "name": ""}


def test_a_critic_that_does_not_look_at_the_action_is_warned_of():
    def blind(observation_space, action_space):
        inputs = keras.Input(observation_space.shape), keras.Input(action_space.shape)
        return keras.Model(inputs, layers.Dense(1)(inputs[0]))

    learner = make_learner(sac(), critics=blind)
    with pytest.warns(UserWarning, match="A critic's value is the same for two actions"):
        learner._build_models()
