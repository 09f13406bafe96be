"""Env strings looked up, and what is no env argument."""

from __future__ import annotations

import re
import sys
import types

import gymnasium as gym
import pytest
from gymnasium.spaces import Discrete

from actor_learner.environments.factory import resolve_env
from actor_learner.system.installation import install_command
from tests.support.scripted_envs import Arrays, Script


class TestResolve:
    def refused(self, env, *args, **kwargs):
        with pytest.raises(ValueError) as caught:
            resolve_env(env, *args, **kwargs)
        message = str(caught.value)
        assert "\n" not in message
        assert "Received: " in message
        return message

    @pytest.mark.parametrize(
        ("env", "match"),
        [
            ("CartPol-v1", "CartPole-v1"),
            ("cartpole-v1", "CartPole-v1"),
            ("CartPole-v7", "CartPole-v1"),
            ("LunarLander-v2", "LunarLander-v3"),
            ("actor_learner/Cath-v0", "actor_learner/Catch-v0"),
            ("actor_learner/Acrobot-v1", "Acrobot-v1"),
            ("gymnasium:CartPol-v1", "gymnasium:CartPole-v1"),
        ],
    )
    def test_unknown_id_has_a_close_match(self, env, match):
        assert f"did you mean `{match}`? Received: env={env!r}" in self.refused(env)

    def test_unknown_id_without_a_close_match(self):
        assert "write `module:Id-v0`" in self.refused("Quux/Frobnicate-v0")

    def test_a_module_alone_lacks_a_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "stock.py").touch()
        assert "did you mean `stock:NAME` with the class or function" in self.refused("stock")
        assert "did you mean `stock:NAME` with the class or function" in self.refused("stock.py")

    @pytest.mark.parametrize(
        ("package", "env", "extra"),
        [
            ("Box2D", "LunarLander-v3", "box2d"),
            ("mujoco", "HalfCheetah-v5", "mujoco"),
            ("ale_py", "ALE/Pong-v5", "atari"),
        ],
    )
    def test_missing_package_names_the_extra(self, package, env, extra, monkeypatch):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)  # Python's own mark for "can't be imported"
        message = self.refused(env)
        assert f"needs the package `{package}`" in message
        assert install_command(f"actor-learner[{extra}]") in message

    def test_a_namespace_may_register_its_ids_by_a_function(self, monkeypatch):
        module = types.ModuleType("minatar.gym")
        module.register_envs = lambda: gym.register("MinAtar/Made-v1", "tests.support.counting_env:CountingEnv")
        monkeypatch.setitem(sys.modules, "minatar", types.ModuleType("minatar"))
        monkeypatch.setitem(sys.modules, "minatar.gym", module)
        try:
            assert resolve_env("MinAtar/Made-v1").name == "MinAtar/Made-v1"
        finally:
            gym.registry.pop("MinAtar/Made-v1", None)

    def test_missing_namespace_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ale_py", None)
        for env_id in [env_id for env_id in gym.registry if env_id.startswith("ALE/")]:
            monkeypatch.delitem(gym.registry, env_id)
        assert install_command("actor-learner[atari]") in self.refused("ALE/Pong-v5")

    def test_registered_by_a_package_that_is_gone(self, monkeypatch):
        spec = gym.envs.registration.EnvSpec("Gone-v0", "gone_package.envs:Gone")
        monkeypatch.setitem(gym.registry, "Gone-v0", spec)
        assert "needs the package `gone_package`, which is not installed" in self.refused("Gone-v0")

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            ("no_such_module:make", "`no_such_module` can't be imported"),
            ("gymnasium.no_such:make", "`gymnasium.no_such` can't be imported"),
            ("users_env:mak", "`users_env` has no attribute `mak`.*did you mean `users_env:make`"),
            ("users_env:nothing_like_it", "`users_env` has no attribute `nothing_like_it`.*write `module:Id-v0`"),
            ("users_env:number", "must be a callable.*number=3"),
            (
                "raises_env:make",
                r"`raises_env` can't be imported: ZeroDivisionError.*raises_env.py, line 1, in <module>",
            ),
            ("imports_env:make", "`imports_env` can't be imported: ModuleNotFoundError: No module named 'no_such_dep'"),
            ("broken_env:make", r"`broken_env` can't be imported: SyntaxError: [^(]*\(/[^(]*broken_env.py, line 1\)"),
            ("users_env.py:make", "a module's name has no `.py`: write users_env"),
            ("one_env:Env", "did you mean `one_env:WarehouseOfMany`"),
            ("FetchReach-v99", "did you mean `gymnasium_robotics:FetchReach-v99`"),
        ],
    )
    def test_module_and_factory(self, env, words, tmp_path, monkeypatch):
        (tmp_path / "users_env.py").write_text("number = 3\ndef make():\n    return number\n")
        (tmp_path / "one_env.py").write_text("class WarehouseOfMany: pass\n")
        (tmp_path / "raises_env.py").write_text("1 / 0\n")
        (tmp_path / "imports_env.py").write_text("import no_such_dep\n")
        (tmp_path / "broken_env.py").write_text("def make(:\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in ("users_env", "raises_env", "imports_env", "broken_env"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        message = self.refused(env)
        assert re.search(words, message), message

    def test_module_of_the_working_directory(self, tmp_path, monkeypatch):
        (tmp_path / "env_right_here.py").write_text(
            "import gymnasium as gym\ndef make():\n    return gym.make('CartPole-v1')\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
        factory = resolve_env("env_right_here:make", check_pickle=False)
        assert factory.name == "env_right_here:make"
        assert sys.path[-1] == str(tmp_path)  # at the end: it shadows nothing
        assert factory.make(2).num_envs == 2

    def test_module_that_registers_an_id(self, tmp_path, monkeypatch):
        (tmp_path / "registers_env.py").write_text(
            "import gymnasium as gym\n"
            "gym.register('Registered-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        try:
            assert resolve_env("registers_env:Registered-v0").make(1).single_action_space == Discrete(2)
        finally:
            gym.registry.pop("Registered-v0", None)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([7], "must be a Gymnasium id, 'module:factory' or a callable. Received: builtins.int"),
            ([Arrays()], "must be a callable that builds the environment. Received: a ready one"),
            ([Script([])], "must be a callable that builds the environment. Received: a ready one"),
            (["CartPole-v1", None, "async"], "'auto' or 'sync'. Received: vectorization='async'"),
            (
                ["CartPole-v1", None, "threads"],
                "use more actors (num_actors), which wait at the same time. Received: vectorization='threads'",
            ),
            ([lambda num_envs: Arrays(num_envs), None, "sync"], "needs single environments"),
            ([Script, {"episode": 3}], "`Script(episodes, observation_space=None)` can't be called"),
            ([Script, {"episode": 3}], "Received: env_kwargs={'episode': 3}"),
            (["CartPole-v1", [1]], "`env_kwargs` must be a dict with names as keys. Received: env_kwargs=[1]"),
            (["os:system"], "must name a module of environments"),
        ],
    )
    def test_what_are_no_arguments(self, arguments, words):
        assert words in self.refused(*arguments)

    def test_without_a_version_the_newest(self):
        assert resolve_env("CartPole").name == "CartPole-v1"

    def test_ids_that_ale_registers_without_a_namespace(self):
        pytest.importorskip("ale_py", reason="needs ale_py")
        assert resolve_env("PongNoFrameskip-v4").name == "PongNoFrameskip-v4"

    def test_nothing_is_built(self):
        def build():
            raise AssertionError("built in the caller")

        assert resolve_env(build, check_pickle=False).name.endswith("build")
