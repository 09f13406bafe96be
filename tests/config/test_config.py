import copy
import dataclasses
import functools
import inspect
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import keras
import numpy as np
import pytest

import actor_learner as al
from actor_learner import algorithms
from actor_learner.config.config import DEFAULT_NETWORK_FIELDS, TrainConfig
from actor_learner.config.references import (
    algorithm_class,
    algorithm_reference,
    callable_name,
    importable_name,
    resolve_reference,
)
from actor_learner.system.fields import ELSEWHERE


def make_environment(**kwargs):
    raise AssertionError("only its name is used here")


def make_network(observation_space, action_space):
    raise AssertionError("only its name is used here")


@dataclass(frozen=True, kw_only=True)
class CautiousPPO(al.PPO):
    caution: float = 0.5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_actors", -1, "`num_actors` must be an integer of at least 0. Received: num_actors=-1"),
        ("num_actors", True, "`num_actors` must be an integer of at least 0. Received: num_actors=True"),
        ("num_actors", 2.5, "`num_actors` must be an integer of at least 0. Received: num_actors=2.5"),
        ("envs_per_actor", 0, "`envs_per_actor` must be an integer of at least 1, or None. Received: envs_per_actor=0"),
        ("unroll_length", 0, "`unroll_length` must be an integer of at least 1, or None. Received: unroll_length=0"),
        ("total_steps", 0, "`total_steps` must be an integer of at least 1. Received: total_steps=0"),
        ("total_steps", "many", "`total_steps` must be an integer of at least 1. Received: total_steps='many'"),
        (
            "updates_per_epoch",
            0,
            "`updates_per_epoch` must be an integer of at least 1, or None. Received: updates_per_epoch=0",
        ),
        ("seed", -1, "`seed` must be an integer of at least 0. Received: seed=-1"),
        ("seed", 2**32, "`seed` must be at most 4294967295. Received: seed=4294967296"),
        ("run_dir", 5, "`run_dir` must be a path, or None. Received: run_dir=5"),
        ("run_dir", "", "`run_dir` must be a path, or None. Received: run_dir=''"),
        ("init_from", 3, "`init_from` must be a path, or None. Received: init_from=3"),
        ("callbacks", 5, "`callbacks` must be a list of keras.callbacks.Callback objects. Received: callbacks=5"),
        (
            "vectorization",
            "async",
            "`vectorization` must be one of 'auto', 'sync' (did you mean 'sync'?). Received: vectorization='async'",
        ),
        ("device", "tpu", "`device` must be one of 'auto', 'cpu', 'gpu' (did you mean 'gpu'?). Received: device='tpu'"),
        ("image_network", "resnet", "`image_network` must be one of 'auto', 'nature', 'impala', 'small'. Received"),
        ("distribution", "beta", "Received: distribution='beta'"),
        ("autoreset_mode", "never", "Received: autoreset_mode='never'"),
        ("noise_hold", 0, "`noise_hold` must be an integer of at least 1. Received: noise_hold=0"),
        ("hidden_sizes", (64, 0), "`hidden_sizes` must be integers of at least 1. Received: hidden_sizes=(64, 0)"),
        ("hidden_sizes", 64, "`hidden_sizes` must be a sequence of integers. Received: hidden_sizes=64"),
        ("hidden_sizes", "64,64", "`hidden_sizes` must be a sequence of integers. Received: hidden_sizes='64,64'"),
        ("initial_log_std", float("nan"), "`initial_log_std` must be a finite number. Received: initial_log_std=nan"),
        ("info_keys", "is_success", "`info_keys` must be a sequence of strings. Received: info_keys='is_success'"),
        ("info_keys", ("a", "a"), "`info_keys` must be different, non-empty strings. Received: info_keys=('a', 'a')"),
        ("info_keys", ("length",), "`info_keys` must be without return and length, which are always reported"),
        ("env_kwargs", [1], "`env_kwargs` must be a dict with names as keys. Received: env_kwargs=[1]"),
        ("env", 3, "`env` must be an id, module:factory or a callable. Received: env=3"),
        ("env", "", "`env` must be an id, module:factory or a callable. Received: env=''"),
        ("algorithm", "ppo", "`algorithm` must be an instance of an algorithm's dataclass"),
        ("algorithm", al.PPO, "`algorithm` must be an instance of an algorithm's dataclass"),
        ("network", 3, "`network` must be a keras.Model or a callable that returns one. Received: network=3"),
        ("activation", 3, "`activation` must be a Keras name. Received: activation=3"),
        ("quiet", "yes", "`quiet` must be True or False. Received: quiet='yes'"),
        ("verbose", 1, "`verbose` must be True or False. Received: verbose=1"),
        (
            "checkpoint_minutes",
            0,
            "`checkpoint_minutes` must be a finite number above 0, or None. Received: checkpoint",
        ),
        ("checkpoint_minutes", float("nan"), "Received: checkpoint_minutes=nan"),
        (
            "checkpoint_updates",
            0,
            "`checkpoint_updates` must be an integer of at least 1, or None. Received: checkpoint_updates=0",
        ),
        ("keep_checkpoints", 0, "`keep_checkpoints` must be an integer of at least 1. Received: keep_checkpoints=0"),
        (
            "keep_checkpoints",
            None,
            "`keep_checkpoints` must be an integer of at least 1. Received: keep_checkpoints=None",
        ),
        (
            "milestone_steps",
            -1,
            "`milestone_steps` must be an integer of at least 1, or None. Received: milestone_steps=-1",
        ),
        ("on_env_error", "ignore", "`on_env_error` must be one of 'restart', 'raise'. Received: on_env_error='ignore'"),
        ("max_restarts", -1, "`max_restarts` must be an integer of at least 0. Received: max_restarts=-1"),
        ("actor_timeout", 0, "`actor_timeout` must be a number of seconds above 0. Received: actor_timeout=0"),
        ("actor_timeout", -1.5, "Received: actor_timeout=-1.5"),
        ("actor_timeout", float("inf"), "Received: actor_timeout=inf"),
        ("actor_timeout", None, "`actor_timeout` must be a number of seconds above 0. Received: actor_timeout=None"),
        (
            "start_timeout",
            float("nan"),
            "`start_timeout` must be a number of seconds above 0. Received: start_timeout=nan",
        ),
        ("start_timeout", "long", "Received: start_timeout='long'"),
        ("start_timeout", True, "Received: start_timeout=True"),
        (
            "max_undone_updates",
            0,
            "`max_undone_updates` must be an integer of at least 1. Received: max_undone_updates=0",
        ),
        ("undone_rate_factor", 0, "`undone_rate_factor` must be a finite number above 0 and at most 1. Received"),
        (
            "undone_rate_factor",
            1.5,
            "`undone_rate_factor` must be a finite number above 0 and at most 1. Received: undone_rate_factor=1.5",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_the_value(field, value, message):
    with pytest.raises(ValueError, match="Received") as error:
        TrainConfig(**{field: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rate_that_a_schedule_writes_is_not_lowered():
    assert TrainConfig(undone_rate_factor=0.5).undone_rate_factor == 0.5
    with pytest.raises(ValueError, match=r"needs a constant learning rate.*learning_rate='linear'"):
        TrainConfig(undone_rate_factor=0.5, algorithm=al.PPO(learning_rate="linear"))


def test_the_first_log_std_is_refused_where_the_noise_is_another():
    with pytest.raises(ValueError, match=r"left out for TD3, whose actions have action_noise.*initial_log_std=-2\.0"):
        TrainConfig(env="Pendulum-v1", algorithm=al.TD3(), initial_log_std=-2.0)
    TrainConfig(env="Pendulum-v1", algorithm=al.SAC(), initial_log_std=-2.0)


def test_a_rate_that_the_schedule_of_an_optimizer_writes_is_not_lowered():
    falling = keras.optimizers.schedules.CosineDecay(1e-3, 100)
    config = {"undone_rate_factor": 0.5, "algorithm": al.PPO(optimizer=keras.optimizers.Adam(falling))}
    with pytest.raises(ValueError, match=r"needs a constant learning rate.*optimizer=Adam with a schedule$"):
        TrainConfig(**config)
    TrainConfig(**{**config, "algorithm": al.PPO(optimizer=keras.optimizers.Adam(1e-3))})


@pytest.mark.parametrize("algorithm", [{}, {"name": 3}, {"name": "ppo", "caution": 1}, {"name": "ppo", "gamma": {}}])
def test_an_algorithm_in_json_that_is_none_is_refused_in_one_line(algorithm):
    with pytest.raises(ValueError, match="Received") as error:
        TrainConfig.from_json({**TrainConfig().to_json(), "algorithm": algorithm})
    assert "\n" not in str(error.value)


def test_fields_take_their_final_form():
    config = TrainConfig(
        hidden_sizes=[np.int64(32), 16], info_keys=["a"], env_kwargs=None, callbacks=None, seed=np.int32(3)
    )
    assert config.hidden_sizes == (32, 16)
    assert config.info_keys == ("a",)
    assert config.env_kwargs == {}
    assert config.callbacks == ()
    assert type(config.seed) is int


def test_a_config_does_not_share_the_dict_it_was_given():
    kwargs = {"continuous": True}
    config = TrainConfig(env_kwargs=kwargs)
    kwargs["continuous"] = False
    assert config.env_kwargs == {"continuous": True}


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().seed = 1


def test_defaults_are_those_of_the_documentation():
    config = TrainConfig()
    assert (config.env, config.num_actors, config.env_counts, config.unroll_length) == ("CartPole-v1", 2, (8, 8), 128)
    assert (config.max_policy_lag, config.total_steps, config.seed) == (0, 500_000, 0)
    assert config.algorithm == al.PPO()
    assert (config.checkpoint_minutes, config.checkpoint_updates, config.keep_checkpoints) == (1.0, None, 3)
    assert (config.on_env_error, config.actor_timeout, config.max_undone_updates) == ("restart", 60.0, 10)


def test_every_field_has_help_and_stands_in_the_docstring():
    for field in dataclasses.fields(TrainConfig):
        assert field.metadata["help"]
        assert f"    {field.name}: " in inspect.cleandoc(TrainConfig.__doc__), field.name


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("hidden_sizes", (8,)),
        ("activation", "relu"),
        ("orthogonal_init", False),
        ("initial_log_std", -1.0),
        ("image_network", "impala"),
        ("channel_axis", 0),
        ("noise_hold", 2),
    ],
)
def test_what_describes_the_default_network_is_refused_beside_another(field, other):
    for brings_a_network in ({"network": make_network}, {"init_from": "runs/earlier"}):
        with pytest.raises(ValueError, match=f"combined with `{next(iter(brings_a_network))}`.*Received: {field}="):
            TrainConfig(**{field: other}, **brings_a_network)


def test_normalization_wraps_a_network_of_ones_own():
    assert TrainConfig(network=make_network, normalize_observation=True).normalize_observation
    with pytest.raises(ValueError, match="combined with `init_from`"):
        TrainConfig(init_from="runs/earlier", normalize_observation=True)


def test_network_and_init_from_exclude_each_other():
    with pytest.raises(ValueError, match="exclude each other"):
        TrainConfig(network=make_network, init_from="runs/earlier")


def test_network_fields_lists_what_differs_or_all():
    config = TrainConfig(hidden_sizes=(8,), noise_hold=2)
    assert config.network_fields() == {"hidden_sizes": (8,), "noise_hold": 2}
    assert set(config.network_fields(all_fields=True)) == set(DEFAULT_NETWORK_FIELDS)


def test_replace_checks_again():
    assert TrainConfig().replace(seed=4).seed == 4
    with pytest.raises(ValueError, match="seed"):
        TrainConfig().replace(seed=-4)


@pytest.mark.slow
def test_another_backend_is_one_error_before_keras_is_loaded():
    program = (
        "import actor_learner as al, sys\n"
        "try: al.TrainConfig()\n"
        "except ValueError as error: print(error, 'keras' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"KERAS_BACKEND": "torch", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "backends tensorflow and jax" in done.stdout
    assert done.stdout.endswith("Received: KERAS_BACKEND=torch False\n")


def test_json_there_and_back():
    config = TrainConfig(
        env="LunarLander-v3",
        env_kwargs={"continuous": True, "gravity": np.float32(-9.5), "levels": (1, np.int64(2))},
        algorithm=al.A2C(learning_rate="linear", gamma=0.5),
        hidden_sizes=(8, 4),
        run_dir="somewhere",
        channel_axis=-1,
    )
    data = json.loads(json.dumps(config.to_json(), allow_nan=False))
    assert data["algorithm"]["name"] == "a2c"
    assert data["env_kwargs"] == {"continuous": True, "gravity": -9.5, "levels": [1, 2]}
    again = TrainConfig.from_json(data)
    assert again == config.replace(env_kwargs=data["env_kwargs"])


def test_json_of_a_custom_algorithm_names_its_class():
    config = TrainConfig(algorithm=CautiousPPO(caution=0.25))
    data = json.loads(json.dumps(config.to_json()))
    assert data["algorithm"]["name"] == f"{__name__}:CautiousPPO"
    assert config.algorithm_name == "cautiousppo"


def test_callables_that_cannot_be_imported_must_be_given_again():
    config = TrainConfig(
        env=lambda: make_environment(), network=functools.partial(make_network), algorithm=al.PPO(learning_rate=abs)
    )
    data = json.loads(json.dumps(config.to_json()))
    assert data["env"]["callable"].startswith(f"{__name__}:test_callables")
    with pytest.raises(ValueError, match="give them again") as error:
        TrainConfig.from_json(data)
    for said in (
        "again: module:factory at a shell, env= in Python (was",
        "--network module:function at a shell, network= in Python (was functools:partial)",
        "algorithm= in Python (was builtins:abs)",
    ):
        assert said in str(error.value)
    assert TrainConfig.from_json(data, env=config.env, network=config.network, algorithm=config.algorithm) == config


def test_callables_that_can_be_imported_are_named_as_at_a_shell():
    config = TrainConfig(env=make_environment, network=make_network)
    data = json.loads(json.dumps(config.to_json()))
    assert (data["env"], data["network"]) == (f"{__name__}:make_environment", f"{__name__}:make_network")
    assert TrainConfig.from_json(data) == config.replace(env=data["env"])
    assert TrainConfig.from_json(data, network=make_environment).network is make_environment


def test_only_what_an_import_gives_is_named(monkeypatch):
    renamed = functools.wraps(make_network)(lambda *_: None)  # it has the name of another
    nested = Outer.make
    monkeypatch.setattr(Outer, "__module__", "__main__")
    for value in (renamed, nested, Outer, functools.partial(make_network), lambda: None, os.system, 3):
        assert importable_name(value) is None
    assert importable_name(make_network) == f"{__name__}:make_network"


def test_a_recorded_network_is_none_of_pythons_own_modules():
    with pytest.raises(
        ValueError, match=r"^`network` must be .*not one of Python's own\. Received: network='os:system'"
    ):
        TrainConfig.from_json({**TrainConfig().to_json(), "network": "os:system"})


class Outer:
    @staticmethod
    def make():
        return None


def test_a_run_of_before_image_network_was_automatic_can_be_loaded():
    data = {**TrainConfig().to_json(), "image_network": "nature"}
    assert TrainConfig.from_json(data).image_network == "nature"
    own = {**data, "network": f"{__name__}:make_network"}
    assert TrainConfig.from_json(own) == TrainConfig(network=make_network)


def test_from_json_ignores_what_a_run_wrote_beside_the_config():
    data = {**TrainConfig().to_json(), "versions": {"keras": "3"}, "chosen": {"xla": True}}
    assert TrainConfig.from_json(data) == TrainConfig()


def test_env_name():
    assert TrainConfig(env="Acrobot-v1").env_name == "Acrobot-v1"
    assert TrainConfig(env=make_environment).env_name == f"{__name__}:make_environment"


@pytest.mark.parametrize("cls", [al.PPO, al.A2C])
def test_algorithms_by_name(cls):
    assert algorithm_class(algorithm_reference(cls)) is cls


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: al.PPO(n_epochs=3), "PPO has no such field (did you mean 'epochs'?). Received: n_epochs=3"),
        (lambda: al.PPO(batch_size=64), "(did you mean 'minibatch_size'?). Received: batch_size=64"),
        (lambda: al.PPO(n_steps=8), "(did you mean 'unroll_length' of TrainConfig?). Received: n_steps=8"),
        (lambda: al.A2C(gama=0.9), "A2C has no such field (did you mean 'gamma'?). Received: gama=0.9"),
        (lambda: al.TrainConfig(clip_coef=0.1), "(did you mean 'clip_range' of the algorithm?). Received: clip_coef"),
        (lambda: al.TrainConfig().replace(sead=1), "TrainConfig has no such field (did you mean 'seed'?)"),
        (lambda: al.PPO("MlpPolicy"), "PPO takes its fields by name, as in PPO(learning_rate=...). Received: 'MlpP"),
        (
            lambda: al.train(al.TrainConfig(), callbacks=[]),
            "train(config.replace(callbacks=...)). Received: callbacks=[]",
        ),
        (lambda: al.train(al.TrainConfig(), total_timesteps=1), "TrainConfig has no such field (did you mean 'total_s"),
    ],
)
def test_a_field_that_there_isn_t_is_answered_with_what_was_meant(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("PPO(n_steps=8)", "(did you mean 'unroll_length' of TrainConfig?)"),
        ("PPO(num_actors=8)", "(did you mean 'num_actors' of TrainConfig?)"),
        ("TrainConfig(gae_lambda=0.9)", "(did you mean 'gae_lambda' of the algorithm?)"),
    ],
)
def test_the_answer_does_not_depend_on_what_was_imported_before(call, message):
    done = subprocess.run(
        [sys.executable, "-c", f"import actor_learner as al\nal.{call}"], capture_output=True, text=True
    )
    assert message in done.stderr.splitlines()[-1]


def test_names_of_other_libraries_stand_for_fields_that_there_are():
    classes = (al.TrainConfig, *algorithms.BY_NAME.values())
    fields = {field.name for cls in classes for field in dataclasses.fields(cls)}
    assert set(ELSEWHERE.values()) <= fields
    assert not fields & set(ELSEWHERE)


def test_an_algorithm_with_an_init_of_its_own_takes_what_that_takes():
    class Own(al.PPO):
        def __init__(self, strength=1.0, /, **fields):
            super().__init__(ent_coef=strength, **fields)

    assert Own(2.0, gamma=0.9) == Own(2.0, gamma=0.9)
    assert copy.deepcopy(Own(2.0)).ent_coef == 2.0


def test_an_unknown_algorithm_names_the_close_match():
    with pytest.raises(
        ValueError, match=r"one of a2c, dqn, impala, ppo, sac, td3, or module:Class \(did you mean 'ppo'\?\)\."
    ):
        algorithm_class("poo")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Class", "can't import 'no_such_module'"),
        ("json:JSONEncodr", r"has no attribute 'JSONEncodr' \(did you mean 'JSONEncoder'\?\)"),
        ("json:JSONEncoder", "must be a dataclass with a method `loss`"),
        ("json:loads", "must be a dataclass with a method `loss`"),
    ],
)
def test_an_algorithm_that_cannot_be_had(name, message):
    with pytest.raises(ValueError, match=message):
        algorithm_class(name)


def test_an_algorithm_of_ones_own_by_name():
    module, _, name = callable_name(CautiousPPO).partition(":")
    sys.modules.setdefault(module, sys.modules[__name__])
    assert algorithm_class(f"{module}:{name}") is CautiousPPO


def test_resolve_reference_goes_into_attributes():
    assert resolve_reference("json:JSONEncoder.default", "x") is json.JSONEncoder.default


def test_callable_name_of_an_object_is_its_class():
    assert callable_name(json.JSONEncoder()) == "json.encoder:JSONEncoder"


def test_quiet_and_verbose_exclude_each_other():
    with pytest.raises(ValueError, match="`quiet` and `verbose` exclude each other. Received: "):
        TrainConfig(quiet=True, verbose=True)


@pytest.mark.parametrize("field", ["total_steps", "num_actors", "seed", "actor_timeout"])
def test_integers_beyond_any_float_are_refused(field):
    with pytest.raises(ValueError, match=f"`{field}` must be"):
        al.TrainConfig(**{field: 10**400})


def test_a_learning_rate_beyond_any_float_is_refused():
    with pytest.raises(
        ValueError,
        match=r"`learning_rate` must be a finite number of at least 0. Received: learning_rate=1000.*\.\.\.$",
    ):
        al.PPO(learning_rate=10**400)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_dtype_policy_that_keras_has_is_recorded(precision):
    keras.config.set_dtype_policy(f"mixed_{precision}")
    try:
        config = al.TrainConfig()
    finally:
        keras.config.set_dtype_policy("float32")
    assert config.precision == precision
    assert al.TrainConfig.from_json(config.to_json()).precision == precision
    assert al.TrainConfig().precision is None


def test_the_precision_of_a_network_that_is_given_is_its_own():
    x = keras.Input((4,))
    network = keras.Model(x, (keras.layers.Dense(2)(x), keras.layers.Dense(1)(x)))
    with pytest.raises(ValueError, match=r"^`precision` is for a network that the run builds; .* precision='float16'$"):
        al.TrainConfig(network=network, precision="float16")
    with pytest.raises(ValueError, match=r"^`precision` is for a network that the run builds"):
        al.TrainConfig(init_from="somewhere", precision="float32")
    assert al.TrainConfig(network=network, precision="float32").precision == "float32"
    with pytest.raises(ValueError, match=r"^`precision` must be one of .* Received: precision='float64'$"):
        al.TrainConfig(precision="float64")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_length": 16}, "need a network with memory"),
        ({"burn_in": 2}, "need a network with memory"),
        ({"memory": "gru", "sequence_length": 24}, "`sequence_length` must be a divisor of `unroll_length`, 128"),
        ({"memory": "gru", "sequence_length": 16, "burn_in": 16}, "`burn_in` must be below the 16 rows of a sequence"),
        ({"memory": "gru", "unroll_length": 127}, "`minibatch_size` must be at least a sequence of 127 rows"),
        ({"memory": "gru", "sequence_length": 128}, "`minibatch_size` must be at least a sequence of 128 rows"),
        ({"memory": "rnn"}, "`memory` must be"),
    ],
)
def test_sequences_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**fields)


def test_sequences_are_for_a_network_with_memory():
    assert TrainConfig(memory="lstm", sequence_length=32, burn_in=4).burn_in == 4
    assert TrainConfig(network=lambda o, a: None, sequence_length=32).sequence_length == 32
