"""Settings of self-play: in Python, at a shell, in files, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import actor_learner as al
from actor_learner.config.file import config_toml
from actor_learner.config.self_play import SelfPlay, check_self_play


def player(observation, mask, generator):
    return int(np.flatnonzero(mask)[0])


def outcome(returns):
    return dict.fromkeys(returns, 0.5)


def config_of(self_play):
    return al.TrainConfig(env="CartPole-v1", self_play=self_play)


def test_true_a_dict_and_text_mean_settings():
    assert config_of(True).self_play == config_of("").self_play == config_of({}).self_play == SelfPlay()
    assert config_of(None).self_play is config_of(False).self_play is config_of("none").self_play is None
    found = config_of(
        "size=4,every=5,above=0.6,rule=latest,latest=0.3,keep=newest,random=0.2,epsilon=0.1,opening=3"
    ).self_play
    expected = {"size": 4, "every": 5, "above": 0.6, "rule": "latest", "latest": 0.3, "keep": "newest"}
    assert found == SelfPlay(**expected, random=0.2, epsilon=0.1, opening=3)
    named = f"players.mine={__name__}:player,outcome={__name__}:outcome"
    assert check_self_play("self_play", named) == SelfPlay(players={"mine": player}, outcome=outcome)


@pytest.mark.parametrize("settings", [SelfPlay(), SelfPlay(size=3, above=0.6, players={"a": player}, outcome=outcome)])
def test_a_config_comes_back_from_json_and_toml(settings, tmp_path):
    config = config_of(settings)
    assert al.TrainConfig.from_json(json.loads(json.dumps(config.to_json()))).self_play == settings
    (tmp_path / "config.toml").write_text(config_toml(config))
    assert al.load_config(tmp_path / "config.toml").self_play == settings


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("size=0", "`size` must be an integer of at least 1. Received: size=0"),
        ({"size": 900}, "`size` must be at most 200"),
        ("every=x", "`every` must be an integer.*every='x'"),
        ("rule=best", "`rule` must be one of 'pfsp', 'uniform', 'latest'"),
        ({"keep": "all"}, "`keep` must be one of 'spread', 'newest'"),
        ("random=x", "`random` must be a number between 0 and 1. Received: random='x'"),
        ({"latest": 2}, "`latest` must be a number between 0 and 1"),
        ({"random": 0.5, "players": {"a": player}}, r"must leave one for the pool. Received: random=0.5, 1 players"),
        ({"players": [player]}, "`players` must be a dict with names as keys"),
        ({"players": {"a": 3}}, r"`players\['a'\]` must be a callable, or module:function"),
        ({"players": {"a": "os:system"}}, "the module not one of Python's own"),
        ({"outcome": "os:getcwd"}, "the module not one of Python's own"),
        ("siz=3", r"has no such setting \(did you mean 'size'\?\)"),
        ("CartPole-v1", r"SETTING=VALUE,... such as size=8,every=20, after ENV"),
        (3, r"SelfPlay\(...\), a dict of its settings, or True"),
    ],
)
def test_settings_that_cannot_be_are_one_clear_line(value, message):
    with pytest.raises(ValueError, match=message) as error:
        config_of(value)
    assert "\n" not in str(error.value)


def test_a_cluster_s_actors_do_not_play():
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match="`self_play` needs all actors on this machine"):
        al.TrainConfig(env="CartPole-v1", self_play=True, ray_address="localhost:6379")
