"""Settings of several policies: in Python, in files, what each policy's own config is, and what is refused."""

from __future__ import annotations

import json

import pytest

import actor_learner as al
from actor_learner.cli import REFUSED, main
from actor_learner.config.file import config_toml

RULE = {"adversary_*": "adversary", "*": "good"}


def config_of(policies=("good", "adversary"), policy_of=RULE, **fields):
    return al.TrainConfig(env="mpe2.simple_tag_v3:parallel_env", policies=policies, policy_of=policy_of, **fields)


def network_of_one_s_own(observation_space, action_space):
    return al.default_network(observation_space, action_space)


def test_a_policy_has_the_runs_settings_but_for_its_own():
    own = al.PolicyConfig(algorithm=al.A2C(ent_coef=0.1), hidden_sizes=[4], learning_rate=1e-3)
    config = config_of({"good": own, "adversary": {"ent_coef": 0.2}}, algorithm=al.PPO(gamma=0.9), seed=5)
    good, adversary = config.of_policies["good"], config.of_policies["adversary"]
    assert good.algorithm == al.A2C(ent_coef=0.1, learning_rate=1e-3)
    assert good.hidden_sizes == (4,)
    assert adversary.algorithm == al.PPO(gamma=0.9, ent_coef=0.2)
    assert good.seed == 5
    assert adversary.seed not in (5, 6)
    assert good.policies is None
    assert good.unroll_length == config.unroll_length
    config = config_of(None, None)
    assert config.of_policies == {"": config}


@pytest.mark.parametrize("command", ["benchmark", "tune"])
def test_commands_that_measure_one_policy_refuse_several(command, tmp_path, capsys):
    path = _written(tmp_path / "roles.toml", '[good]\nagents = "agent_*"\n[adversary]\nagents = "adversary_*"\n')
    assert main([command, "mpe2.simple_tag_v3:parallel_env", "--policies", str(path)]) == REFUSED
    text = capsys.readouterr().err
    assert f"must be left out of {command}, which measures one policy. Received: " in text
    assert text.count("\n") == 1


def test_init_from_of_a_run_is_each_policys_own():
    config = config_of({"good": None, "adversary": {"init_from": "other"}}, init_from="run")
    assert config.of_policies["good"].init_from == "run/policies/good"
    assert config.of_policies["adversary"].init_from == "other"
    named = {"good": None, "adversary": {"network": network_of_one_s_own}}
    assert config_of(named, init_from="run").of_policies["adversary"].init_from is None


POLICIES = {
    "good": al.PolicyConfig(agents="agent_*", algorithm=al.DQN(double=True), hidden_sizes=(8, 8)),
    "adversary": al.PolicyConfig(agents=["adversary_*"], learning=False, network=network_of_one_s_own),
}


def test_a_config_comes_back_from_json_and_toml(tmp_path):
    config = config_of(POLICIES, None)
    for again in (
        al.TrainConfig.from_json(json.loads(json.dumps(config.to_json()))),
        al.load_config(_written(tmp_path / "config.toml", config_toml(config))),
    ):
        assert again.to_json() == config.to_json()
        assert again.of_policies["good"].algorithm == al.DQN(double=True)
        assert again.of_policies["adversary"].network is network_of_one_s_own
        assert not again.policies["adversary"].learning
    rule = config_of(policy_of=RULE)
    assert al.TrainConfig.from_json(json.loads(json.dumps(rule.to_json()))).policy_of == RULE


def _written(path, text):
    path.write_text(text)
    return path


def test_policies_come_from_a_file_of_tables(tmp_path):
    good = '[good]\nagents = "agent_*"\nmemory = "none"\n'
    text = good + '[adversary]\nagents = ["adversary_*"]\nalgorithm = "a2c"\nent_coef = 0.5\n'
    config = config_of(str(_written(tmp_path / "roles.toml", text)), None)
    assert config.of_policies["adversary"].algorithm == al.A2C(ent_coef=0.5)
    assert config.policies["good"].agents == ("agent_*",)
    assert config_of(policy_of=json.dumps(RULE)).policy_of == RULE


@pytest.mark.parametrize(
    ("policies", "fields", "message"),
    [
        (["one"], {}, "`policies` must be two policies or more"),
        ("nothing.toml", {}, r"`policies` must be a TOML file with a table for each policy \(No such file"),
        ({"a b": None, "c": None}, {}, "names as keys, each a word.*Received: policies='a b'"),
        ({"good": 3, "adversary": None}, {}, r"`policies\['good'\]` must be a PolicyConfig"),
        (3, {}, "`policies` must be a dict"),
        (None, {}, "`policies` needs|`policy_of` needs `policies`"),
        (("good", "bad"), {}, r"`policy_of` must name one of `policies`, \['good', 'bad'\]. Received: 'adversary'"),
        (("good", "adversary"), {"policy_of": None}, "`policies` need `policy_of`"),
        (("good", "adversary"), {"policy_of": {"*": 3}}, "`policy_of` must be a dict"),
        (("good", "adversary"), {"policy_of": "os:system"}, "not one of Python's own"),
        ({"good": {"agents": "x"}, "adversary": None}, {}, "`policy_of` and `agents` of a policy exclude each other"),
        ({"good": {"hidden_size": 3}, "adversary": None}, {}, "`policies`, good: A policy of PPO has no such field"),
        ({"good": {"num_actors": 3}, "adversary": None}, {}, "`policies`, good: .*no such field"),
        ({"good": {"gamma": 3.0}, "adversary": None}, {}, "`policies`, good: `gamma` must be"),
        ({"good": {"learning": 3}, "adversary": None}, {}, "`learning` must be True or False"),
        ({"good": {"learning": False}, "adversary": {"learning": False}}, {}, "`policies` must have one that learns"),
        (("good", "adversary"), {"self_play": True}, "`policies` and `self_play` exclude each other"),
        (("good", "adversary"), {"acting": "device"}, "`policies` act in the actors"),
        (("good", "adversary"), {"ray_address": "auto"}, "`policies` needs all actors on this machine"),
    ],
)
def test_bad_input_is_refused_in_one_line(policies, fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        config_of(policies, **fields)
    assert "\n" not in str(caught.value)
    assert "Received: " in str(caught.value)
