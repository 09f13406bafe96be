import copy
import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import actor_learner as al
from actor_learner import algorithms
from actor_learner.config.config import DEFAULT_NETWORK_FIELDS, TrainConfig
from actor_learner.config.references import (
    algorithm_class,
    callable_name,
    importable_name,
    resolve_reference,
    same_env,
)
from actor_learner.system.fields import ELSEWHERE
from tests.support.processes import patience


def make_environment(**kwargs):
    raise AssertionError("only its name is used here")


def halved(progress_remaining):
    return progress_remaining / 2


def make_network(observation_space, action_space):
    raise AssertionError("only its name is used here")


@dataclass(frozen=True, kw_only=True)
class CautiousPPO(al.PPO):
    caution: float = 0.5


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("num_actors", -1, "an integer of at least 0"),
        ("num_actors", True, "an integer of at least 0"),
        ("envs_per_actor", 0, "an integer of at least 1, or None"),
        ("unroll_length", 0, "an integer of at least 1, or None"),
        ("total_steps", 0, "at least 1, or 0 with `offline_steps`"),
        ("updates_per_epoch", 0, "an integer of at least 1, or None"),
        ("seed", -1, "an integer of at least 0"),
        ("seed", 2**32, "at most 4294967295"),
        ("run_dir", 5, "a path, or None"),
        ("run_dir", "", "a path, or None"),
        ("init_from", 3, "a path, or None"),
        ("callbacks", 5, "a list of keras.callbacks.Callback objects or names, module:factory"),
        ("callbacks", "module:factory", "a list of keras.callbacks.Callback objects or names, module:factory"),
        ("callbacks", ["EarlyStopping"], "a list of keras.callbacks.Callback objects or names, module:factory"),
        ("vectorization", "async", "one of 'auto', 'sync' (did you mean 'sync'?)"),
        ("device", "tpu", "one of 'auto', 'cpu', 'gpu' (did you mean 'gpu'?)"),
        ("image_network", "resnet", "one of 'auto', 'nature', 'impala', 'impoola', 'small'"),
        ("distribution", "beta", "one of 'gaussian', 'squashed'"),
        ("autoreset_mode", "never", "one of None, 'next_step', 'same_step', 'disabled'"),
        ("noise_hold", 0, "an integer of at least 1"),
        ("hidden_sizes", (64, 0), "integers of at least 1"),
        ("hidden_sizes", 64, "a sequence of integers"),
        ("hidden_sizes", "64,64", "a sequence of integers"),
        ("initial_log_std", float("nan"), "a finite number"),
        ("info_keys", "is_success", "a sequence of strings"),
        ("info_keys", ("a", "a"), "different, non-empty strings"),
        ("info_keys", ("_score",), "without an underscore at the start, as flags have"),
        ("info_keys", ("reward/_root",), "without an underscore at the start, as flags have"),
        ("info_keys", ("length",), "without return and length, which are always reported"),
        ("env_kwargs", [1], "a dict with names as keys"),
        ("wrappers", 3, "names like minigrid.wrappers:ImgObsWrapper, or callables"),
        ("wrappers", ["here:One", None], "names like minigrid.wrappers:ImgObsWrapper, or callables"),
        ("wrapper_kwargs", "size", "a dict by class name, or a dict for each wrapper"),
        ("env", 3, "an id, module:factory or a callable"),
        ("env", "", "an id, module:factory or a callable"),
        ("algorithm", al.PPO, "an instance of an algorithm's dataclass, such as al.PPO()"),
        ("network", 3, "a keras.Model or a callable that returns one"),
        ("activation", 3, "a Keras name"),
        ("quiet", "yes", "True or False"),
        ("verbose", 1, "True or False"),
        ("checkpoint_minutes", 0, "a finite number above 0, or None"),
        ("checkpoint_updates", 0, "an integer of at least 1, or None"),
        ("keep_checkpoints", 0, "an integer of at least 1"),
        ("keep_checkpoints", None, "an integer of at least 1"),
        ("milestone_steps", -1, "an integer of at least 1, or None"),
        ("on_env_error", "ignore", "one of 'restart', 'raise'"),
        ("max_restarts", -1, "an integer of at least 0"),
        ("actor_timeout", 0, "a number of seconds above 0"),
        ("actor_timeout", float("inf"), "a number of seconds above 0"),
        ("actor_timeout", None, "a number of seconds above 0"),
        ("start_timeout", float("nan"), "a number of seconds above 0"),
        ("start_timeout", True, "a number of seconds above 0"),
        ("max_undone_updates", 0, "an integer of at least 1"),
        ("undone_rate_factor", 0, "a finite number above 0 and at most 1"),
        ("undone_rate_factor", 1.5, "a finite number above 0 and at most 1"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_the_value(field, value, what):
    with pytest.raises(ValueError) as error:
        TrainConfig(**{field: value})
    assert str(error.value) == f"`{field}` must be {what}. Received: {field}={value!r}"


def test_a_rate_that_a_schedule_writes_is_not_lowered():
    assert TrainConfig(undone_rate_factor=0.5).undone_rate_factor == 0.5
    falling = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, 100))
    for algorithm, received in (
        (al.PPO(learning_rate="linear"), "learning_rate='linear'"),
        (al.PPO(optimizer=falling), "optimizer=Adam with a schedule$"),
    ):
        with pytest.raises(ValueError, match=f"needs a constant learning rate.*{received}"):
            TrainConfig(undone_rate_factor=0.5, algorithm=algorithm)
    TrainConfig(undone_rate_factor=0.5, algorithm=al.PPO(optimizer=keras.optimizers.Adam(1e-3)))


def test_the_first_log_std_is_refused_where_the_noise_is_another():
    with pytest.raises(ValueError, match=r"left out for TD3, whose actions have action_noise.*initial_log_std=-2\.0"):
        TrainConfig(env="Pendulum-v1", algorithm=al.TD3(), initial_log_std=-2.0)
    TrainConfig(env="Pendulum-v1", algorithm=al.SAC(), initial_log_std=-2.0)


@pytest.mark.parametrize("algorithm", [{}, {"name": 3}, {"name": "ppo", "caution": 1}, {"name": "ppo", "gamma": {}}])
def test_an_algorithm_in_json_that_is_none_is_refused_in_one_line(algorithm):
    with pytest.raises(ValueError, match="Received") as error:
        TrainConfig.from_json({**TrainConfig().to_json(), "algorithm": algorithm})
    assert "\n" not in str(error.value)


def test_fields_take_their_final_form():
    kwargs = {"continuous": True}
    config = TrainConfig(hidden_sizes=[np.int64(32), 16], info_keys=["a"], env_kwargs=kwargs, seed=np.int32(3))
    assert config.hidden_sizes == (32, 16)
    assert config.info_keys == ("a",)
    assert type(config.seed) is int
    kwargs["continuous"] = False
    assert config.env_kwargs == {"continuous": True}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    config = TrainConfig(env_kwargs=None, callbacks=None)
    assert config.env_kwargs == {}
    assert config.callbacks == ()


class OwnLoss(al.algorithms.ActorCritic):
    def loss(self, outputs, minibatch):
        raise NotImplementedError


@pytest.mark.parametrize(
    "algorithm", [al.PPO(), al.Impala(), al.A2C(), al.DQN(), al.PQN(), al.IQL(), al.SAC(), al.TD3(), OwnLoss()]
)
def test_the_default_lag_is_the_algorithms_whose_loss_allows_for_older_weights(algorithm):
    lag = int(isinstance(algorithm, al.PPO | al.Impala))
    config = TrainConfig(env="Pendulum-v1", algorithm=algorithm)
    assert (config.max_policy_lag, config.replace(num_actors=0).max_policy_lag) == (lag, lag)
    assert config.replace(algorithm=al.A2C()).max_policy_lag == 0
    assert config.replace(max_policy_lag=1).replace(algorithm=al.A2C()).max_policy_lag == 1
    assert config.to_json()["max_policy_lag"] == lag


def test_above_lag_1_impala_runs_freely_and_recorded_runs_of_earlier_versions_do(tmp_path):
    impala = TrainConfig(algorithm=al.Impala(), max_policy_lag=4)
    assert impala.asynchronous
    assert not impala.replace(max_policy_lag=1).asynchronous
    assert not impala.replace(num_actors=0).asynchronous
    ppo = impala.replace(algorithm=al.PPO())
    assert not TrainConfig.from_json(ppo.to_json()).asynchronous
    recorded = {name: value for name, value in ppo.to_json().items() if name != "asynchronous"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**recorded, "versions": {}}))
    assert TrainConfig.from_json(recorded).asynchronous
    assert [al.load_config(file, max_policy_lag=lag).asynchronous for lag in (4, 8, 1)] == [True, True, False]


@pytest.mark.parametrize(
    ("field", "value"),
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
def test_what_describes_the_default_network_is_refused_beside_another(field, value):
    for other, given in (("network", make_network), ("init_from", "runs/earlier")):
        with pytest.raises(ValueError, match=f"combined with `{other}`.*Received: {field}="):
            TrainConfig(**{field: value, other: given})


def test_normalization_wraps_a_network_of_ones_own():
    assert TrainConfig(network=make_network, normalize_observation=True).normalize_observation
    with pytest.raises(ValueError, match="combined with `init_from`"):
        TrainConfig(init_from="runs/earlier", normalize_observation=True)
    with pytest.raises(ValueError, match="exclude each other"):
        TrainConfig(network=make_network, init_from="runs/earlier")


def test_network_fields_lists_what_differs_or_all():
    config = TrainConfig(hidden_sizes=(8,), noise_hold=2)
    assert config.network_fields() == {"hidden_sizes": (8,), "noise_hold": 2}
    assert set(config.network_fields(all_fields=True)) == set(DEFAULT_NETWORK_FIELDS)


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
        timeout=patience(60),
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
    again = TrainConfig.from_json(data)
    assert again == config
    assert [type(value) for value in again.env_kwargs["levels"]] == [int, np.int64]


class Mode(enum.StrEnum):
    EASY = "easy"
    HARD = "hard"


class Pair(NamedTuple):
    first: int


@pytest.mark.parametrize("value", [Mode.HARD, (1, [(2,)]), np.float32(0.1), {"a": Mode.EASY}, np.bool_(True)])
def test_env_kwargs_come_back_in_their_types(value):
    again = TrainConfig.from_json(json.loads(json.dumps(TrainConfig(env_kwargs={"given": value}).to_json())))
    found = again.env_kwargs["given"]
    assert (repr(found), type(found)) == (repr(value), type(value))


def test_one_class_by_two_names_is_one_environment(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Renamed", Pair, raising=False)
    assert same_env(f"{__name__}:Renamed", f"{__name__}:Pair")
    assert same_env(Pair, f"{__name__}:Renamed")
    assert not same_env(f"{__name__}:Mode", f"{__name__}:Pair")
    assert not same_env("nowhere:Pair", f"{__name__}:Pair")


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
    config = TrainConfig(
        env=make_environment,
        env_kwargs={"rewards": [make_network, CautiousPPO], "scale": 2},
        algorithm=al.PPO(learning_rate=halved),
        network=make_network,
    )
    data = json.loads(json.dumps(config.to_json()))
    assert (data["env"], data["network"]) == (f"{__name__}:make_environment", f"{__name__}:make_network")
    assert data["env_kwargs"]["rewards"][1] == {"import": f"{__name__}:CautiousPPO"}
    assert TrainConfig.from_json(data) == config.replace(env=data["env"])
    assert TrainConfig.from_json(data, network=make_environment).network is make_environment


def test_wrappers_that_can_be_imported_are_named_and_others_asked_for():
    config = TrainConfig(wrappers=[Outer, "here:One"], wrapper_kwargs=[{"size": 3}, {}])
    assert (
        config.wrappers == (f"{__name__}:Outer", "here:One") == TrainConfig(wrappers=",".join(config.wrappers)).wrappers
    )
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    data = TrainConfig(wrappers=[lambda env: env]).to_json()
    with pytest.raises(ValueError, match=r"--wrappers module:Class at a shell, wrappers= in Python \(was .*lambda"):
        TrainConfig.from_json(data)


def test_only_what_an_import_gives_is_named(monkeypatch):
    renamed = functools.wraps(make_network)(lambda *_: None)  # it has the name of another
    nested = Outer.make
    monkeypatch.setattr(Outer, "__module__", "__main__")
    for value in (renamed, nested, Outer, functools.partial(make_network), lambda: None, os.system, 3):
        assert importable_name(value) is None
    assert importable_name(make_network) == f"{__name__}:make_network"


@pytest.mark.parametrize(
    "value",
    [
        *({1: "a"}, {"import": "a:b"}, {"callable": "a:b"}, {"tuple": [1]}, OrderedDict(a=1)),
        *(np.zeros(2), {3}, b"a", {"a": abs}, Pair(1), Path("a")),
    ],
)
def test_what_json_cannot_hold_is_not_taken_for_something_else(value):
    data = json.loads(json.dumps(TrainConfig(env_kwargs={"given": value}).to_json()))
    with pytest.raises(ValueError, match=r"env_kwargs= in Python \(was [\w.]+:"):
        TrainConfig.from_json(data)


@pytest.mark.parametrize(
    ("name", "value"), [("network", "os:system"), ("env_kwargs", {"a": [{"import": "os:system"}]})]
)
def test_what_is_recorded_is_none_of_pythons_own_modules(name, value):
    with pytest.raises(
        ValueError, match=rf"^`{name}` must be .*not one of Python's own\. Received: {name}='os:system'"
    ):
        TrainConfig.from_json({**TrainConfig().to_json(), name: value})


class Outer:
    @staticmethod
    def make():
        return None


def test_from_json_takes_runs_of_before_and_ignores_what_they_wrote_beside_the_config():
    data = {**TrainConfig().to_json(), "image_network": "nature"}
    assert TrainConfig.from_json(data).image_network == "nature"
    own = {**data, "network": f"{__name__}:make_network"}
    assert TrainConfig.from_json(own) == TrainConfig(network=make_network)
    data = {**TrainConfig().to_json(), "versions": {"keras": "3"}, "chosen": {"xla": True}}
    assert TrainConfig.from_json(data) == TrainConfig()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: al.PPO(n_epochs=3), "PPO has no such field (did you mean 'epochs'?). Received: n_epochs=3"),
        (lambda: al.PPO(batch_size=64), "(did you mean 'minibatch_size'?). Received: batch_size=64"),
        (lambda: al.PPO(n_steps=8), "(did you mean 'unroll_length' of TrainConfig?). Received: n_steps=8"),
        (lambda: al.TrainConfig(n_timesteps=1), "(did you mean 'total_steps'?). Received: n_timesteps=1"),
        (lambda: al.PPO(policy="MlpPolicy"), "(did you mean 'network' of TrainConfig?). Received: policy='MlpPolicy'"),
        (lambda: al.TrainConfig(env_wrapper="a.B"), "(did you mean 'wrappers'?). Received: env_wrapper='a.B'"),
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
def test_the_answer_does_not_depend_on_what_was_imported_before():
    """Each is asked first of all in a process."""
    for call, message in (
        ("PPO(num_actors=8)", "(did you mean 'num_actors' of TrainConfig?)"),
        ("TrainConfig(gae_lambda=0.9)", "(did you mean 'gae_lambda' of the algorithm?)"),
    ):
        command = [sys.executable, "-c", f"import actor_learner as al\nal.{call}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("poo", r"one of a2c, bc, .*, pqn, qrdqn, sac, td3, tqc, or module:Class \(did you mean 'ppo'\?\)\."),
        ("no_such_module:Class", "can't import 'no_such_module'"),
        ("json:JSONEncodr", r"has no attribute 'JSONEncodr' \(did you mean 'JSONEncoder'\?\)"),
        ("json:JSONEncoder", "must be a dataclass that subclasses al.algorithms.Algorithm"),
        ("json:loads", "must be a dataclass that subclasses al.algorithms.Algorithm"),
    ],
)
def test_an_algorithm_that_cannot_be_had(name, message):
    with pytest.raises(ValueError, match=message):
        algorithm_class(name)


def test_references_there_and_back():
    assert resolve_reference("json:JSONEncoder.default", "x") is json.JSONEncoder.default
    assert callable_name(json.JSONEncoder()) == "json.encoder:JSONEncoder"  # an object's is its class


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


def test_a_dtype_policy_that_keras_has_is_recorded():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        config = al.TrainConfig()
    finally:
        keras.config.set_dtype_policy("float32")
    assert config.precision == "bfloat16"
    assert al.TrainConfig.from_json(config.to_json()).precision == "bfloat16"
    assert al.TrainConfig().precision == "auto"


def test_float16_is_refused_by_name_by_policy_and_in_a_network():
    said = r"^`precision` .*'bfloat16'.* Received: precision='float16'$"
    with pytest.raises(ValueError, match=said):
        al.TrainConfig(precision="float16")
    with pytest.raises(ValueError, match=said):
        al.TrainConfig.from_json({**al.TrainConfig().to_json(), "precision": "float16"})
    in_float16 = r"^The network must compute in bfloat16 or float32 .* Received: .*float16"
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x = keras.Input((4,))
        network = keras.Model(x, (keras.layers.Dense(2)(x), keras.layers.Dense(1, dtype="float32")(x)))
        with pytest.raises(ValueError, match=in_float16):
            al.TrainConfig()
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(ValueError, match=in_float16):
        al.TrainConfig(network=network)


def test_the_precision_of_a_network_that_is_given_is_its_own():
    x = keras.Input((4,))
    network = keras.Model(x, (keras.layers.Dense(2)(x), keras.layers.Dense(1)(x)))
    with pytest.raises(
        ValueError, match=r"^`precision` is for a network that the run builds; .* precision='bfloat16'$"
    ):
        al.TrainConfig(network=network, precision="bfloat16")
    with pytest.raises(ValueError, match=r"^`precision` is for a network that the run builds"):
        al.TrainConfig(init_from="somewhere", precision="float32")
    assert al.TrainConfig(network=network, precision="float32").precision == "float32"
    assert al.TrainConfig(network=network, precision="tf32").tf32  # the device's, whatever the network
    with pytest.raises(ValueError, match=r"^TF32 is .* on a CPU use .* Received: tf32 on cpu$"):
        al.TrainConfig(precision="tf32", device="cpu")
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


def test_gymnasiums_own_word_for_a_mode_is_taken():
    assert al.TrainConfig(autoreset_mode=AutoresetMode.SAME_STEP).autoreset_mode == "same_step"
