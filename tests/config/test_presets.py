import copy
import dataclasses

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.config.presets import PRESETS, preset_fields
from actor_learner.config.self_play import SelfPlay
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from actor_learner.spaces.jax_env import names_jax_env


@dataclasses.dataclass(frozen=True, kw_only=True)
class CautiousPPO(al.PPO):
    caution: float = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CautiousDQN(al.DQN):
    caution: float = 0.5


def in_actors(env):
    """Return what lets actors step an environment in JAX, on any backend of Keras."""
    return {"vectorization": "sync"} if names_jax_env(env) else {}


@pytest.mark.parametrize(("env", "algorithm"), [(env, name) for env, by_name in PRESETS.items() for name in by_name])
def test_every_preset_makes_a_config_of_a_registered_environment(env, algorithm):
    pattern, env = env, env.replace("*", "Breakout-v1" if env.startswith("MinAtar/") else "Breakout-v5")
    config = al.preset(env, algorithm=algorithm, **in_actors(env))
    assert config.env == env
    assert type(config.algorithm).__name__.lower() == algorithm
    try:
        assert resolve_env(env, check_pickle=False).name == env
    except EnvError as error:
        if "needs the package" in str(error) or "robotics]" in str(error):
            pytest.skip(str(error))
        raise
    assert preset_fields(env, algorithm) == PRESETS[pattern][algorithm]
    fields = preset_fields(env, algorithm)
    for name, value in fields.items():
        holder = config if hasattr(config, name) else config.algorithm
        found = getattr(holder, name)
        assert found == SelfPlay(**value) if name == "self_play" else found == value, name


def test_changes_go_to_the_config_and_to_the_algorithm():
    config = al.preset("CartPole-v1", learning_rate=1e-4, num_actors=3, gamma=0.5)
    plain = al.preset("CartPole-v1")
    assert (config.algorithm.learning_rate, config.algorithm.gamma, config.num_actors) == (1e-4, 0.5, 3)
    assert config.algorithm.gae_lambda == plain.algorithm.gae_lambda
    assert config.unroll_length == plain.unroll_length


@pytest.mark.filterwarnings("ignore:.*(can keep only|all actors have as many)")
def test_environments_are_split_anew_from_the_numbers_that_were_asked_for():
    config = al.preset("CartPole-v1", num_actors=20)
    assert config.replace(quiet=True).env_counts == (1,) * 8
    assert config.replace(num_envs=40).env_counts == (2,) * 20
    freely = al.preset("CartPole-v1", algorithm="impala", num_actors=5)
    assert freely.env_counts == (3,) * 5
    assert freely.replace(num_actors=2).env_counts == (8, 8)
    assert freely.replace(envs_per_actor=2).env_counts == (2,) * 5


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, (8,)),
        ({"num_envs": 16}, (8, 8)),
        ({"envs_per_actor": 8}, (8, 8)),
        ({"max_policy_lag": 0}, (4, 4)),
        ({"max_policy_lag": 1, "num_envs": 8}, (8,)),
    ],
)
def test_a_preset_s_one_actor_is_for_its_own_environments_and_lag(changes, counts):
    assert al.preset("CartPole-v1", **changes).env_counts == counts


@pytest.mark.parametrize(
    ("algorithm", "actors", "counts", "said"),
    [
        ("ppo", 9, (1,) * 8, "8 environments can keep only 8 actors busy.*num_actors=9, num_envs=8"),
        ("impala", 3, (5, 5, 5), "all actors have as many environments, so 15 are used.*num_envs=16"),
    ],
)
def test_actors_that_the_environments_do_not_suffice_for_are_warned_of(algorithm, actors, counts, said):
    with pytest.warns(UserWarning, match=said) as found:
        config = al.preset("CartPole-v1", algorithm=algorithm, num_actors=actors)
    assert len(found) == 1
    assert (config.num_actors, config.env_counts) == (len(counts), counts)


def test_environments_of_each_actor_take_the_place_of_a_preset_s_number():
    config = al.preset("CartPole-v1", num_actors=3, envs_per_actor=2)
    assert (config.env_counts, config.num_envs) == ((2, 2, 2), None)
    assert config.replace(num_envs=9).env_counts == (3, 3, 3)
    assert config.replace(num_envs=9).replace(envs_per_actor=5).env_counts == (5, 5, 5)
    with pytest.raises(ValueError, match=r"exclude each other. Received: num_envs=4, envs_per_actor=2"):
        al.TrainConfig(num_envs=4, envs_per_actor=2)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            "CartPole-v1",
            {"learning_rat": 1},
            r"no such field \(did you mean 'learning_rate'\?\). Received: learning_rat=1",
        ),
        ("CartPole-v0", {}, r"did you mean 'CartPole-v1'\?.*HalfCheetah-v5.*Received: preset='CartPole-v0'"),
        ("CartPole-v1", {"gamma": 1.5}, "Received: gamma=1.5"),
    ],
)
def test_what_is_refused_names_the_close_match(name, fields, message):
    with pytest.raises(ValueError, match=message):
        al.preset(name, **fields)


@pytest.mark.parametrize(
    ("env", "name", "algorithm"),
    [
        ("HalfCheetah-v5", "sac", al.SAC(gamma=0.5)),
        ("LunarLander-v3", "dqn", al.DQN(double=True)),
        ("CartPole-v1", "impala", al.Impala()),
        ("CartPole-v1", "dqn", CautiousDQN(caution=0.1)),
    ],
)
def test_an_instance_takes_the_other_fields_of_its_own_algorithm_s_preset(env, name, algorithm):
    config, named = al.preset(env, algorithm=algorithm), al.preset(env, algorithm=name)
    assert config.algorithm == algorithm
    assert config.replace(algorithm=named.algorithm) == named


def test_an_instance_without_a_preset_takes_the_fields_of_ppo_s_only_where_it_learns_as_ppo_does():
    assert al.preset("HalfCheetah-v5", algorithm=al.A2C()).normalize_observation
    with pytest.raises(ValueError, match=r"no preset of this name for TD3; there are none. Received: preset='Half"):
        al.preset("HalfCheetah-v5", algorithm=al.TD3())


def test_an_environment_s_own_presets_leave_those_of_its_prefix():
    pong, breakout = (al.preset(env, algorithm="dqn") for env in ("ALE/Pong-v5", "ALE/Breakout-v5"))
    assert pong == breakout.replace(env="ALE/Pong-v5")
    assert al.preset("ALE/Pong-v5").total_steps != al.preset("ALE/Breakout-v5").total_steps


@pytest.mark.parametrize(("env", "most"), [("ALE/Breakout-v5", 8e9), ("CartPole-v1", 45e6)])
def test_a_million_steps_in_a_preset_s_buffer(env, most):
    config = al.preset(env, algorithm="dqn")
    space = Box(0, 255, (4, 84, 84), np.uint8) if env.startswith("ALE") else Box(-1, 1, (4,), np.float32)
    steps = 64 * config.unroll_length  # of a million
    buffer = al.ReplayBuffer(space, Discrete(4), steps, unroll_length=config.unroll_length)
    assert buffer.nbytes / steps * 1e6 < most


def test_a_network_replaces_what_the_preset_says_of_the_default_one():
    assert al.preset("HalfCheetah-v5").network_fields() != {}
    config = al.preset("HalfCheetah-v5", init_from="runs/earlier")
    assert config.network_fields() == {}
    with pytest.raises(ValueError, match="Received: hidden_sizes"):
        al.preset("HalfCheetah-v5", init_from="runs/earlier", hidden_sizes=(8,))


def test_an_optimizer_replaces_what_the_preset_says_of_the_named_ones():
    import keras

    optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
    algorithm = al.preset("HalfCheetah-v5", optimizer=optimizer).algorithm
    assert algorithm.optimizer is optimizer
    assert algorithm.gae_lambda == al.preset("HalfCheetah-v5").algorithm.gae_lambda
    named = al.preset("HalfCheetah-v5", optimizer="rmsprop").algorithm
    assert named.learning_rate == al.preset("HalfCheetah-v5").algorithm.learning_rate


def test_without_memory_a_preset_says_nothing_of_sequences():
    env = "actor_learner/LunarLanderNoVelocity-v0"
    assert (al.preset(env).memory, al.preset(env).sequence_length) == ("gru", 64)
    config = al.preset(env, memory=None)
    assert (config.memory, config.sequence_length, config.unroll_length) == (None, None, al.preset(env).unroll_length)
    with pytest.raises(ValueError, match="`sequence_length` and `burn_in` need a network with memory"):
        al.preset(env, memory=None, sequence_length=64)


def test_a_subclass_takes_the_preset_of_its_ancestor(monkeypatch):
    monkeypatch.setattr("json.CautiousPPO", CautiousPPO, raising=False)
    assert preset_fields("CartPole-v1", "json:CautiousPPO") == preset_fields("CartPole-v1", "ppo")
    config = al.TrainConfig.from_fields(
        {"env": "CartPole-v1", "gamma": 0.5, "caution": 0.25, "algorithm": "json:CautiousPPO"}
    )
    assert config.algorithm == CautiousPPO(gamma=0.5, caution=0.25)


def test_presets_are_not_changed_by_using_them():
    before = copy.deepcopy(PRESETS)
    for name, by_algorithm in PRESETS.items():
        al.preset(name, algorithm=next(iter(by_algorithm)), seed=3, gamma=0.1, **in_actors(name))
    assert before == PRESETS


def test_a_lost_life_is_terminal_in_every_preset_of_atari_and_keys_of_the_environment_change_one_by_one():
    assert al.preset("ALE/Breakout-v5").env_kwargs == {"episodic_life": True}
    changed = al.preset("ALE/Pong-v5", env_kwargs={"repeat_action_probability": 0.0})
    assert changed.env_kwargs == {"episodic_life": True, "repeat_action_probability": 0.0}
    assert al.preset("ALE/Pong-v5", env_kwargs={"episodic_life": False}).env_kwargs == {"episodic_life": False}
    assert al.preset("ALE/Pong-v5", env_kwargs=None).env_kwargs == {}


def test_an_environment_takes_anothers_preset_without_arguments_that_it_may_not_know():
    pong = preset_fields("ALE/Pong-v5")
    assert preset_fields("ALE/Pong-v5", "ppo", "ALE/Breakout-v5") == pong
    for env in ("actor_learner/Catch-v0", "my_module:factory", lambda: None):
        assert preset_fields("ALE/Pong-v5", "ppo", env) == {k: v for k, v in pong.items() if k != "env_kwargs"}


def test_an_id_without_a_version_has_the_preset_of_the_newest(monkeypatch):
    monkeypatch.setitem(PRESETS, "HalfCheetah-v10", {"ppo": {"total_steps": 7}})
    monkeypatch.setitem(PRESETS, "HalfCheetah-v9", {"ppo": {"total_steps": 8}})
    assert al.preset("HalfCheetah").total_steps == 7
    assert al.preset("ALE/Pong") == al.preset("ALE/Pong-v5").replace(env="ALE/Pong")
    assert preset_fields("Half") is None


def test_a_preset_that_is_named_alone_names_the_environment_too(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('preset = "Pendulum-v1"\n')
    assert al.load_config(file) == al.preset("Pendulum-v1")
    assert al.load_config(file, env="Acrobot-v1").env == "Acrobot-v1"
    file.write_text('preset = "ALE/*"\n')
    assert al.load_config(file).env == "CartPole-v1"
