"""doctor: what it finds wrong, and the form that it says it in."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from actor_learner import cli
from actor_learner.cli import doctor
from actor_learner.cli.doctor import Diagnosis, examine, try_it
from actor_learner.system.installation import install_command


def test_an_environment_without_a_cluster_is_refused(capsys):
    """The self-test trains CartPole, so this one would not have been tried."""
    assert cli.main(["doctor", "--env", "my_module:make"]) == 2
    assert "it needs `--ray`. Received: --env my_module:make" in capsys.readouterr().err


@pytest.mark.slow
def test_the_self_test_learns(without_xla, monkeypatch):
    monkeypatch.setattr(doctor, "SECONDS", 0.1)
    found = doctor.train_briefly()
    assert found["updates"] >= 2
    assert found["env steps per second"] > 0
    assert isinstance(found["GPUs that TensorFlow sees"], list)


@pytest.mark.parametrize("found", [{"updates": 7}, {"failed": "no such thing"}])
def test_the_result_of_the_self_test_is_told(found, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "try_it", lambda: found)
    code = cli.main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["self-test"] == found
    assert (code, told["ok"]) == ((1, False) if told["problems"] else (0, True))
    assert any("no such thing" in problem for problem in told["problems"]) == ("failed" in found)


def test_a_table_to_paste(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "driver_version", lambda: None)
    assert cli.main(["doctor", "--no-self-test"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### actor-learner doctor"
    rows = [line for line in lines if line.startswith("|")]
    assert all(row.count("|") == 3 and row.endswith("|") for row in rows)
    assert rows[1].strip("|- ") == ""
    told = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows}
    assert told["NVIDIA's driver"] == "none"
    assert told["tensorflow"] == importlib.metadata.version("tensorflow")
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"cpu", "memory, GB", "memfd_create", "open files (soft, hard)"} <= set(told)


def test_a_bar_does_not_end_a_cell_and_an_empty_section_is_left_out():
    values = {"XLA_FLAGS": "a|b", "None": None, "list": []}
    text = Diagnosis({"environment": values, "machine": {}}, ("Bad.",)).as_markdown()
    assert "a\\|b" in text
    assert "| no limit |" in text
    assert "machine" not in text
    assert "\n- Bad.\n" in text
    assert "No problem" not in text


def test_only_variables_that_matter_are_told(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.setenv("TF_TOKEN_example", "secret")
    told = examine(self_test=False).sections["environment"]
    assert (told["OMP_NUM_THREADS"], told["TF_NUM_INTRAOP_THREADS"]) == ("3", "1")
    assert "secret" not in str(told)
    assert "PATH" not in told


def test_what_is_wrong_is_a_line_that_says_what_to_do(monkeypatch, capsys):
    import resource

    real = importlib.metadata.version
    requirements = ["cloudpickle<4,>=3.1; python_version > '3'", "no; python_version < '3'", "nothing; extra == 'x'"]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1" if name == "cloudpickle" else real(name))
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 128) if which == resource.RLIMIT_NOFILE else (-1, -1))
    monkeypatch.setattr(doctor.machine, "cgroup_limit", lambda: 5e8)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert cli.main(["doctor", "--no-self-test"]) == 1
    problems = [line[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
    expected = [
        f"cloudpickle<4,>=3.1 is needed: {install_command('cloudpickle<4,>=3.1')}. Received: cloudpickle=0.1",
        "The limit of open files is low; raise it: ulimit -n 1024. Received: 64",
        "Little memory is left, and a run takes at least 1 GB; end other programs. Received: 0.5 GB",
        "actor_learner runs on Keras's backends tensorflow and jax; set KERAS_BACKEND to one of them. Received: "
        "KERAS_BACKEND=torch",
    ]
    assert problems == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "timeout", "message"),
    [
        ("raise ValueError('no such thing')", 600, "ValueError: no such thing"),
        ("import os; os.kill(os.getpid(), 9)", 600, "it was killed by SIGKILL"),
        ("import time; time.sleep(600)", 1, "it did not finish in 1 seconds"),
    ],
)
def test_a_self_test_that_fails_is_told(program, timeout, message, tmp_path, monkeypatch):
    """A package of the same name, first on the path, stands in for an installation that is broken."""
    (tmp_path / "actor_learner" / "cli").mkdir(parents=True)
    (tmp_path / "actor_learner" / "__init__.py").touch()
    (tmp_path / "actor_learner" / "cli" / "__init__.py").touch()
    (tmp_path / "actor_learner" / "cli" / "doctor.py").write_text(program)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert message in try_it(timeout)["failed"]
