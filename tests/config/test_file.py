"""Config files: TOML and JSON, flat and nested, with lines in what is refused; a run's config.json repeats the run."""

from __future__ import annotations

import json
import sys
import tomllib

import pytest
from hypothesis import given, settings, strategies as st

import actor_learner as al
from actor_learner import cli
from actor_learner.config.file import NO_FILE, build, config_toml, differences, read_config_file
from tests.support.run_files import create_run

NESTED = """
env = "Acrobot-v1"
total_steps = 1e4
hidden_sizes = [32, 16]
checkpoint_minutes = "none"

[env_kwargs]
max_episode_steps = 50

[algorithm]  # its own
name = "a2c"
learning_rate = "linear_1e-3"
minibatch_size = "None"
"""

FLAT = """
algorithm = "a2c"
env = "Acrobot-v1"
env_kwargs = '{"max_episode_steps": 50}'
total_steps = 10_000
hidden_sizes = [32, 16]
checkpoint_minutes = "none"
learning_rate = "linear_1e-3"
preset = "none"
"""

CONFIG = al.TrainConfig(
    env="Acrobot-v1",
    env_kwargs={"max_episode_steps": 50},
    algorithm=al.A2C(learning_rate="linear_1e-3"),
    total_steps=10_000,
    hidden_sizes=(32, 16),
    checkpoint_minutes=None,
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(text, name="settings.toml"):
    with open(name, "w") as file:
        file.write(text)
    return name


def config_of(*argv):
    return cli.train.train_config(cli.parse(["train", *argv]))


def refused(text, **changes):
    """The one line that a file is answered with."""
    with pytest.raises(ValueError) as caught:
        al.load_config(written(text), **changes)
    assert "\n" not in str(caught.value)
    assert "Received: " in str(caught.value) or "(was " in str(caught.value)
    return str(caught.value)


def test_flat_and_nested_toml_and_json_say_the_same():
    assert al.load_config(written(FLAT)) == CONFIG
    assert al.load_config(written('preset = "none"\n' + NESTED)) == CONFIG
    as_json = json.dumps({**tomllib.loads(NESTED), "preset": "none", "checkpoint_minutes": None}, indent=1)
    assert al.load_config(written(as_json, "settings")) == CONFIG
    assert al.load_config(written(FLAT), seed=3, gamma=0.5) == CONFIG.replace(
        seed=3, algorithm=al.A2C(learning_rate="linear_1e-3", gamma=0.5)
    )


def test_flags_stand_over_the_file_and_the_file_over_the_preset():
    file = written('env = "CartPole-v1"\ngamma = 0.5\nepochs = 3\n')
    assert config_of("--config", file) == al.preset("CartPole-v1", gamma=0.5, epochs=3)
    assert config_of(f"--config={file}", "--gamma", "0.7") == al.preset("CartPole-v1", gamma=0.7, epochs=3)
    assert config_of("--config", file, "--preset", "none") == al.TrainConfig(algorithm=al.PPO(gamma=0.5, epochs=3))
    assert config_of("Acrobot-v1", "--config", file) == al.preset("Acrobot-v1", gamma=0.5, epochs=3)


def test_the_environments_arguments_of_flags_or_file_join_those_of_the_preset():
    flags = ["--env-kwargs", '{"noop_max": 1}']
    both = al.preset("ALE/Breakout-v5", env_kwargs={"noop_max": 1})
    assert both.env_kwargs == {"episodic_life": True, "noop_max": 1}
    assert config_of("ALE/Breakout-v5", *flags) == both
    file = written('env = "ALE/Breakout-v5"\n[env_kwargs]\nnoop_max = 1\n')
    assert al.load_config(file) == both
    off = ["--env-kwargs", '{"episodic_life": false}']
    assert config_of("--config", file, *off).env_kwargs == {"episodic_life": False}
    assert config_of("ALE/Breakout-v5", "--preset", "none", *flags).env_kwargs == {"noop_max": 1}
    assert config_of("actor_learner/Catch-v0", "--preset", "ALE/Breakout-v5", *flags).env_kwargs == {"noop_max": 1}


def test_another_algorithm_takes_nothing_of_the_files():
    file = written('algorithm = "ppo"\nclip_range = 0.1\ngamma = 0.5\nseed = 4\n')
    assert config_of("--config", file, "--algorithm", "a2c") == al.preset("CartPole-v1", algorithm="a2c", seed=4)
    assert al.load_config(file, algorithm=al.Impala(gamma=0.9)).algorithm == al.Impala(gamma=0.9)


def test_the_files_algorithm_has_its_flags(capsys):
    file = written('algorithm = "a2c"\npreset = "none"')
    assert config_of("--config", file, "--gae-lambda", "0.9").algorithm == al.A2C(gae_lambda=0.9)
    of_ppo = "--config", file, "--algorithm", "ppo", "--clip-range", "0.1"
    assert config_of(*of_ppo).algorithm == al.PPO(clip_range=0.1)
    with pytest.raises(ValueError, match=r"no such flag.*--clip-range"):
        cli.parse(["train", "--config", file, "--clip-range", "0.1"])


def test_a_network_in_the_file_replaces_what_the_preset_says_of_the_default_one(tmp_path):
    (tmp_path / "nets.py").write_text("def build(observation_space, action_space): ...\nclass A: ...\n")
    sys.path.append(str(tmp_path))
    file = written('env = "HalfCheetah-v5"\nnetwork = "nets:build"')
    config = al.load_config(file)
    assert config.network.__name__ == "build"
    assert not config.normalize_observation
    assert 'network = "nets:build"' in (text := config_toml(config))
    assert "null" not in text
    assert "settings.toml, line 1: `network`: module 'nets'" in refused('network = "nets:bild"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\n\nlerning_rate = 0.1", "line 1: TrainConfig and PPO have no such field. Received: a=1"),
        ("\n# x = 1\nlerning_rate = 0.1", "line 3: TrainConfig and PPO have no such field (did you mean 'learning_ra"),
        ("[algorithm]\nname = 'a2c'\nclip_range = 1", "line 3: A2C has no such field (did you mean 'clip_reward'?)"),
        ("[algorithm]\nseed = 1", "line 2: PPO has no such field"),
        ("algorithm.gama = 1", "line 1: PPO has no such field (did you mean 'gamma'?). Received: gama=1"),
        ('{"seed": 1,\n "sead": 2}', "line 2: TrainConfig and PPO have no such field (did you mean 'seed'?)"),
        ('{"algorithm":\n {"name": "ppo",\n "gama": 2}}', "line 3: PPO has no such field (did you mean 'gamma'?)"),
        ("[actors]\nnum_actors = 2", "line 1: TrainConfig and PPO have no such field"),
        ("seed = 1\nnum_actors = 'two'", "line 2: `num_actors` must be an integer of at least 0"),
        (
            "seed = 1\nnum_actors = 1.5",
            "line 2: `num_actors` must be an integer of at least 0. Received: num_actors=1.5",
        ),
        ("seed = 'none'", "line 1: `seed` must be an integer of at least 0. Received: seed='none'"),
        ("[algorithm]\ngamma = 1.5", "line 2: `gamma` must be a number between 0 and 1. Received: gamma=1.5"),
        ("[algorithm]\nname = 'poo'", "(did you mean 'ppo'?). Received: algorithm='poo'"),
        ("algorithm = 3", "line 1: `algorithm` must be a name, or a table with one. Received: algorithm=3"),
        ("gamma = 0.9\n[algorithm]\ngamma = 0.8", "`gamma` is also in the file's table `algorithm`"),
        ("env_kwargs = '{'", "line 1: `env_kwargs` must be a dict with names as keys. Received: env_kwargs='{'"),
        ("quiet = 'yes'", "line 1: `quiet` must be True or False. Received: quiet='yes'"),
        ("preset = 'CartPol-v1'", "line 1: There is no preset of this name for ppo (did you mean 'CartPole-v1'?"),
        ("seed = 1\npreset = 5", "line 2: `preset` must be a name. Received: preset=5"),
        ("preset = false", "line 1: `preset` must be a name. Received: preset=False"),
        ("seed = 1\nenv_kwargs = {a = [2020-01-01]}", "line 2: `env_kwargs` must not be or hold a date or time"),
        ("learning_rate = 07:32:00", "line 1: `learning_rate` must not be or hold a date or time; quote it"),
        ("seed = 1\ncallbacks = [1]", 'line 2: `callbacks` must be names, as in ["module:factory"]; only Python can'),
        ("callbacks = ['os:system']", "line 1: `callbacks` must not name one of Python's own modules"),
        ("n_epochs = 3", "line 1: TrainConfig and PPO have no such field (did you mean 'epochs'?)"),
        ("seed = 1\nseed = 2", "must be a TOML or JSON file; as TOML: Cannot overwrite a value (at"),
        ('{"seed": 1, "seed": 2}', "as JSON: the key 'seed' is repeated"),
        ('{"seed": 1', "as JSON: Expecting ',' delimiter: line 1 column 11"),
        ("{" + '"a": [' * 100_000, "must be a TOML or JSON file; as JSON:"),
        ("seed", "as TOML: Expected '=' after a key in a key/value pair (at end of document)"),
        ("#" * (1 << 20) + "#", "must be a file of 1 MB at most"),
        (
            "env_kwargs.a.import = 'os:system'",
            "`env_kwargs` must be module:function, the module not one of Python's own",
        ),
        ("env_kwargs.a.import = 'nowhere:f'", "line 1: `env_kwargs`: can't import 'nowhere'"),
        ("env = 'os:system'", "line 1: `env` must not name one of Python's own modules. Received: env='os:system'"),
        ("network = 'os:system'", "`network` must not name one of Python's own modules"),
        ("algorithm = 'this:A'", "`algorithm` must not name one of Python's own modules"),
        ("network = 'nowhere:build'", "line 1: `network`: can't import 'nowhere'"),
    ],
)
def test_what_is_refused_is_one_line_with_its_place(text, message):
    assert message in refused(text)


def test_a_file_in_yaml_is_refused_as_such():
    file = written("CartPole-v1:\n  n_timesteps: 1e5\n", "zoo.yml")
    with pytest.raises(ValueError, match="a TOML or JSON file, not YAML: `key = value` in place of.*'zoo.yml'"):
        al.load_config(file)


def test_what_is_given_again_is_not_blamed_on_the_file():
    assert al.load_config(written("num_actors = 'two'"), num_actors=2).num_actors == 2
    assert not refused("num_actors = 2", num_actors="two").startswith("settings.toml")
    assert not refused("num_actors = 2", numactors=2).startswith("settings.toml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "No such file"),
        (".", "of a run it is config.json"),
        ("/dev/zero", "1 MB"),
        ("bytes", "text in UTF-8"),
    ],
)
def test_files_that_cannot_be_read(name, message, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"^`config` .*Received: config=") as caught:
        al.load_config(name)
    assert message in str(caught.value)


@pytest.mark.slow
def test_what_was_a_callable_is_named_where_it_is_asked_for():
    def make(*spaces):
        raise AssertionError("only its name is used here")

    config = al.TrainConfig(env=make, callbacks=[make], network=make)
    file = create_run(config).config
    with pytest.raises(ValueError) as caught:
        al.load_config(file)
    for name in ("env", "callbacks", "network"):
        assert f"{name}= in Python (was tests.config.test_file:test_what_was" in str(caught.value)
    assert "--network module:function at a shell" in str(caught.value)
    assert al.load_config(file, env=make, callbacks=[make], network=make) == config
    scheduled = al.TrainConfig(algorithm=al.PPO(learning_rate=lambda progress: progress))
    file = create_run(scheduled).config
    with pytest.raises(ValueError, match=r"line \d+: .*learning_rate= in Python \(was .*lambda"):
        al.load_config(file)
    assert al.load_config(file, learning_rate=1e-3).algorithm == al.PPO(learning_rate=1e-3)


@pytest.mark.parametrize("kwargs", ['{"a": [1, null]}', f'{{"a": [{{"import": "{__name__}:written"}}]}}'])
def test_print_config_can_be_fed_back(capsys, kwargs):
    argv = ["HalfCheetah-v5", "--algorithm", "ppo", "--checkpoint-minutes", "none", "--env-kwargs", kwargs]
    argv += ["--callback", "mine:make", "--callback", "keras.callbacks:History"]
    assert cli.main(["train", *argv, "--print-config"]) == 0
    text = capsys.readouterr().out
    assert config_of("--config", written(text)) == config_of(*argv)
    assert ("import" in kwargs) == (written in config_of(*argv).env_kwargs["a"])
    assert cli.main(["train", "--config", "settings.toml", "--print-config"]) == 0
    assert capsys.readouterr().out == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")), json_values, max_size=4),
    st.sampled_from([al.PPO(), al.A2C()]),
)
def test_any_config_survives_as_toml(env_kwargs, algorithm):
    wrapping = {"wrappers": ["here:One"], "wrapper_kwargs": {"One": env_kwargs}}
    config = al.TrainConfig(
        env_kwargs=env_kwargs, algorithm=algorithm, **wrapping, run_dir="a 'quoted\" \\ name\x7f\t\n"
    )
    tomllib.loads(config_toml(config))
    assert al.load_config(written(config_toml(config))) == config


@pytest.mark.slow
def test_a_runs_own_file_brings_neither_its_directory_nor_a_preset():
    run = create_run(al.preset("CartPole-v1", run_dir="mine", overwrite=True, seed=3, gamma=0.5))
    config = config_of("--config", str(run.config))
    assert config == al.preset("CartPole-v1", seed=3, gamma=0.5)
    assert config_of("--config", str(run.config), "--run-dir", "other").run_dir == "other"
    plain = create_run(al.TrainConfig(env="CartPole-v1", run_dir="plain"))
    assert al.load_config(plain.config) == al.TrainConfig(env="CartPole-v1")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dqn", al.DQN(n_step=2)])
def test_another_algorithm_takes_none_of_the_defaults_of_a_runs_own(algorithm):
    """Those of PPO are in its config.json, as values like all others."""
    run = create_run(al.TrainConfig(env="CartPole-v1", activation="elu", run_dir="mine", overwrite=True))
    expected = al.DQN() if algorithm == "dqn" else algorithm
    config = al.load_config(run.config, algorithm=algorithm)
    assert config == al.TrainConfig(env="CartPole-v1", activation="elu", algorithm=expected)
    back = create_run(al.TrainConfig(env="CartPole-v1", algorithm=al.DQN(n_step=3), run_dir="back", overwrite=True))
    assert al.load_config(back.config, algorithm="ppo") == al.TrainConfig(env="CartPole-v1")


def test_what_differs_from_the_runs_machine_and_versions():
    here = {"versions": {"keras": "3.15", "numpy": "2.1"}, "machine": {"cpu": "A", "cores": 2, "memory_gb": 8.0}}
    there = {"versions": {"keras": "3.14", "numpy": "2.1"}, "machine": {"cpu": "A", "cores": 4, "memory_gb": 7.0}}
    assert differences(there, here) == ["keras 3.14 (here 3.15)", "cores 4 (here 2)"]
    assert differences(here, here) == []
    assert differences({"versions": None, "machine": 3}, here) == []


def test_a_file_that_says_nothing():
    assert build(NO_FILE, {}) == al.preset("CartPole-v1")
    assert al.load_config(written("")) == al.preset("CartPole-v1")
    assert read_config_file("settings.toml").fields == {}
