"""Environment factories: sent to another process, and building there."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordVideo, TimeLimit

from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError
from actor_learner.environments.factory import resolve_env
from tests.support.processes import patience
from tests.support.scripted_envs import Arrays, Script, play

SHARED = Script([(1, True, False)])


class TestPickling:
    def unpicklable(self, env, env_kwargs=None):
        with pytest.raises(EnvError) as caught:
            resolve_env(env, env_kwargs)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_a_closure_names_the_variable(self):
        lock = threading.Lock()

        def make():
            return lock and Script([(1, True, False)])

        message = self.unpicklable(make)
        assert "because its variable `lock` can't be pickled" in message
        assert "_thread.lock" in message

    def test_an_argument(self):
        lock = threading.Lock()
        assert "`env_kwargs['episodes']` can't be pickled" in self.unpicklable(Script, {"episodes": [lock]})
        assert "argument 0 of the partial can't be pickled" in self.unpicklable(functools.partial(Script, [lock]))

    def test_an_attribute(self):
        class Maker:
            def __init__(self):
                self.lock = threading.Lock()

            def __call__(self):
                return Script([(1, True, False)])

        assert "its attribute `lock` can't be pickled" in self.unpicklable(Maker())

    def test_a_callable_that_stays_may_hold_anything(self):
        lock = threading.Lock()
        factory = resolve_env(lambda: lock and Script([(1, True, False)]), check_pickle=False)
        assert factory.make(2).num_envs == 2

    @pytest.mark.slow
    def test_what_only_the_caller_registered_reaches_another_process(self, tmp_path):
        """The entry point stands in `__main__`, as a string, and the other process knows nothing of either."""
        script = tmp_path / "script.py"
        script.write_text(
            "import sys\nimport gymnasium as gym\nfrom gymnasium.spaces import Box, Discrete\n"
            "from actor_learner.environments.factory import resolve_env\n"
            "class Here(gym.Env):\n"
            "    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)\n"
            "    def __init__(self, size=0):\n        self.size = size\n"
            "    def reset(self, seed=None, options=None):\n        return self.observation_space.low + 0.5, {}\n"
            "gym.register('Here-v0', '__main__:Here', kwargs={'size': 3}, max_episode_steps=9)\n"
            "open(sys.argv[1], 'wb').write(resolve_env('Here-v0').dumps())\n"
        )
        payload = tmp_path / "payload"
        subprocess.run([sys.executable, script, payload], check=True, timeout=patience(60))
        load = (
            "import pickle, sys\nfrom actor_learner.environments.environments import Environments\n"
            "factory = pickle.load(open(sys.argv[1], 'rb'))\nvector_env = factory.make(2)\n"
            "print(Environments(vector_env).reset(0)[0].tolist(), vector_env.envs[0].unwrapped.size, factory.name)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", load, payload], check=True, timeout=patience(60), capture_output=True, text=True
        )
        assert done.stdout.strip() == "[[0.5], [0.5]] 3 Here-v0"

    def test_a_wrapper_registered_in_main(self, monkeypatch):
        wrapper = gym.envs.registration.WrapperSpec("W", "__main__:W", {})
        spec = gym.envs.registration.EnvSpec("Wrapped-v0", "gymnasium:Env", additional_wrappers=(wrapper,))
        monkeypatch.setitem(gym.registry, "Wrapped-v0", spec)
        with pytest.raises(EnvError, match="put wrappers inside a callable env"):
            resolve_env("Wrapped-v0")


class TestWrappers:
    def test_go_around_single_environments_within_the_record_and_the_last_one_is_outermost(self):
        names = ("gymnasium.wrappers:TimeLimit", "gymnasium.wrappers:FlattenObservation")
        factory = resolve_env(
            "CartPole-v1", {"max_episode_steps": 7}, "auto", names, {"TimeLimit": {"max_episode_steps": 3}}
        )
        vector_env = pickle.loads(factory.dumps()).make(2)
        layers = "<FlattenObservation<TimeLimit<TimeLimit<OrderEnforcing<CartPoleEnv<CartPole-v1>>>>>>"
        assert str(vector_env.envs[0]) == layers
        _, episodes = play(Environments(vector_env), 7)
        assert all(own == [(3.0, 3.0, {}), (3.0, 3.0, {})] for own in episodes)

    def test_may_be_any_callables_with_keyword_arguments_in_their_order(self):
        def shift(env, by):
            return gym.wrappers.TransformReward(env, lambda reward: reward + by)

        factory = resolve_env(Script, {"episodes": [(1, True, False)]}, "auto", (shift, shift), ({"by": 1}, {"by": 2}))
        _, episodes = play(Environments(factory.make(1)), 2)
        (without,) = play(Environments(resolve_env(Script, {"episodes": [(1, True, False)]}).make(1)), 2)[1]
        assert episodes[0][0][0] == without[0][0] + 3

    @pytest.mark.parametrize(
        ("env", "wrappers", "kwargs", "message"),
        [
            (
                "CartPole-v1",
                ["gymnasium.wrappers.TimeLimit"],
                {},
                "must be names such as gymnasium.wrappers:TimeLimit. Rec",
            ),
            ("CartPole-v1", ["gymnasium.wrappers:TimeLimt"], {}, "did you mean gymnasium.wrappers:TimeLimit"),
            ("CartPole-v1", ["gymnasium.wrapers:TimeLimit"], {}, "`gymnasium.wrapers` can't be imported"),
            ("CartPole-v1", ["os:system"], {}, "not one of Python's own"),
            ("CartPole-v1", ["gymnasium.wrappers.vector:NormalizeReward"], {}, "this one takes a vector environment"),
            ("CartPole-v1", [TimeLimit], {}, """--wrapper-kwargs '{"TimeLimit": {...}}'"""),
            ("CartPole-v1", [TimeLimit], {"Timelimit": {}}, "did you mean 'TimeLimit'? Received: 'Timelimit'"),
            ("CartPole-v1", [], {"TimeLimit": {}}, "the wrappers are none. Received: 'TimeLimit'"),
            ("CartPole-v1", [TimeLimit], {"TimeLimit": 3}, "must be a dict with names as keys. Received: 3"),
            ("CartPole-v1", [TimeLimit], [{}, {}], "a dict for each of the 1 wrappers, or a dict by class name"),
            (
                CartPoleVectorEnv,
                [TimeLimit],
                [{"max_episode_steps": 3}],
                "builds only whole vector environments: wrap them in a",
            ),
        ],
    )
    def test_are_refused_before_anything_is_built(self, env, wrappers, kwargs, message):
        with pytest.raises(EnvError, match=re.escape(message)) as caught:
            resolve_env(env, wrappers=wrappers, wrapper_kwargs=kwargs)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("wrapper", "message"),
        [
            (lambda env: 1 / 0, "wrapper `<lambda>` of env `CartPole-v1` can't be built: ZeroDivisionError"),
            (
                lambda env: 3,
                "wrapper `<lambda>` of env `CartPole-v1` must return a gymnasium.Env. Received: builtins.int",
            ),
            (
                type("Bare", (gym.Wrapper,), {"__init__": lambda self, env: None}),
                r"wrapper `Bare` of env `CartPole-v1` must call super\(\).__init__\(env\) in its __init__",
            ),
        ],
    )
    def test_that_fail_are_named(self, wrapper, message):
        with pytest.raises(EnvError, match=message):
            resolve_env("CartPole-v1", wrappers=[wrapper]).make(2)

    def test_of_minigrid(self):
        pytest.importorskip("minigrid", reason="needs minigrid")
        env = "minigrid:MiniGrid-DoorKey-5x5-v0"
        factory = resolve_env(env, wrappers=["minigrid.wrappers:ImgObsWrapper"])
        assert Environments(factory.make(2)).reset(0)[0].shape == (2, 7, 7, 3)


class TestMake:
    def test_sync(self):
        factory = resolve_env("CartPole-v1", {"max_episode_steps": 7}, "sync")
        vector_env = pickle.loads(factory.dumps()).make(2)
        assert isinstance(vector_env, SyncVectorEnv)
        assert Environments(vector_env).autoreset_mode is AutoresetMode.DISABLED
        assert "PassiveEnvChecker" not in str(vector_env.envs[0])
        _, episodes = play(Environments(vector_env), 15)
        assert all(own == [(7.0, 7.0, {}), (7.0, 7.0, {})] for own in episodes)

    def test_vector_factory_gets_num_envs_and_seed(self):
        received = []

        def make(num_envs, seed, size=1):
            received.append((num_envs, seed, size))
            return Arrays(num_envs)

        assert resolve_env(make, {"size": 4}, check_pickle=False).make(3, 17).num_envs == 3
        assert received == [(3, 17, 4)]
        assert resolve_env(CartPoleVectorEnv).make(3, 17).num_envs == 3

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            (lambda: 3, r"must return a gymnasium.Env. Received: builtins.int"),
            (lambda: Arrays(), r"needs a parameter named `num_envs`. Received:.*Arrays"),
            (lambda num_envs: Script([]), r"has a parameter `num_envs` and must return a gymnasium VectorEnv"),
            (
                lambda num_envs: Arrays(num_envs + 1),
                r"VectorEnv of 2 environments, the `envs_per_actor`. Received: num_envs=3",
            ),
            (lambda: SHARED, r"must build a new environment at each call"),
            (lambda: 1 / 0, r"can't be built: ZeroDivisionError: division by zero \(.*test_factory.py, line \d+"),
        ],
    )
    def test_what_comes_back_is_wrong(self, env, message):
        with pytest.raises(EnvError, match=message):
            resolve_env(env, check_pickle=False).make(2)

    def test_kwargs_that_the_id_does_not_take(self):
        with pytest.raises(EnvError, match=r"env `Acrobot-v1` can't be built: TypeError.*wings"):
            resolve_env("Acrobot-v1", {"wings": 2}).make(1)

    @pytest.mark.slow
    def test_mujoco_leaves_no_log_file_and_warns_once(self, tmp_path):
        pytest.importorskip("mujoco", reason="needs mujoco")
        code = (
            "import mujoco\nfrom actor_learner.environments.factory import resolve_env\n"
            "resolve_env('HalfCheetah-v5').make(3)\n"
            "for _ in range(3):\n    mujoco.get_mju_user_warning()('unstable')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, timeout=patience(60), capture_output=True, text=True, cwd=tmp_path
        )
        assert done.stderr == "MuJoCo: unstable\n"
        assert list(tmp_path.iterdir()) == []


class Levelled(Script):
    def __init__(self, config, lock=None):
        super().__init__([(1, True, False)])
        self.level, self.config, self.lock = config.pop("level", 0), config, lock


class Vector(SyncVectorEnv):
    def __init__(self, num_envs, config):
        self.level = config.pop("level", 0)
        super().__init__([lambda: Script([(1, True, False)])] * num_envs)


def levelled(env, config):
    env.unwrapped.level = config.pop("level", 0)
    return env


def test_each_environment_has_arguments_of_its_own():
    config, lock = {"level": 3}, threading.Lock()
    factory = resolve_env(Levelled, {"config": config, "lock": lock}, check_pickle=False)
    vector_env = factory.make(3)
    assert [env.level for env in vector_env.envs] == [3, 3, 3]
    assert all(env.lock is lock for env in vector_env.envs)  # which can't be copied
    assert len({id(env.config) for env in vector_env.envs}) == 3
    wrapped = resolve_env(Script, {"episodes": [(1, True, False)]}, "auto", (levelled,), ({"config": config},))
    assert [env.unwrapped.level for env in wrapped.make(2).envs] == [3, 3]
    assert [resolve_env(Vector, {"config": config}).make(2).level for _ in range(2)] == [3, 3]
    assert config == {"level": 3}


class HoldsLock:
    def __init__(self):
        self.first, self.lock, self.last = [1], threading.Lock(), 2


def test_what_cannot_be_copied_is_whole_in_each_argument_and_read_only_arrays_are_shared():
    held, table, own = HoldsLock(), np.arange(3.0), np.arange(3.0)
    table.setflags(write=False)
    kwargs = {"config": {"held": held}, "again": held, "tables": [table, own], "own": own}
    seen = []
    factory = resolve_env(lambda **given: seen.append(given) or Script([(1, True, False)]), kwargs, check_pickle=False)
    factory.make(2)
    for given in seen:
        assert given["config"]["held"] is given["again"] is held
        assert given["tables"][0] is table
        assert given["tables"][1] is given["own"] is not own
    arrays = pickle.loads(resolve_env(Script, {"episodes": [table]}).dumps()).env_kwargs["episodes"]
    assert not arrays[0].flags.writeable


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
@pytest.mark.parametrize(("limit", "least"), [(-1, 8), (None, 8), (3, 3)])
def test_a_limit_of_steps_means_the_same_with_each_vectorization(vectorization, limit, least):
    vector_env = resolve_env("CartPole-v1", {"max_episode_steps": limit}, vectorization).make(1)
    _, episodes = play(Environments(vector_env), 40)
    assert max(length for own in episodes for _, length, _ in own) >= least
    assert limit != 3 or all(length == 3 for own in episodes for _, length, _ in own)


def test_a_parameter_named_env_index_gets_the_environments_number():
    def make(env_index):
        return Levelled({"level": env_index})

    factory = dataclasses.replace(resolve_env(make), first_env=4)
    assert [env.level for env in factory.make(3).envs] == [4, 5, 6]
    with pytest.raises(EnvError, match="'rank'; a parameter `env_index` gets the environment's number"):
        resolve_env(lambda rank: None)


@pytest.mark.slow
def test_videos_of_several_environments_have_files_of_their_own(tmp_path):
    options = {"video_folder": str(tmp_path), "disable_logger": True}
    filmed = resolve_env("CartPole-v1", {"render_mode": "rgb_array"}, "sync", (RecordVideo,), {"RecordVideo": options})
    assert [env.name_prefix for env in filmed.make(2).envs] == ["rl-video", "rl-video-env-1"]
    again = {"env-1-step-0", "env-1-2-episode-7", "env-10-episode-0"}
    for name in again:
        (tmp_path / f"rl-video-{name}.mp4").touch()
    assert [env.name_prefix for env in filmed.make(2).envs] == ["rl-video", "rl-video-env-1-3"]  # nothing is lost
