import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import actor_learner as al
from actor_learner.plot import plot, read_curves, smooth
from tests.run_files import append_metrics, create_run


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(run_dir, returns, *, first=0, every=100, seed=0, env="CartPole-v1", algorithm=None):
    config = al.TrainConfig(run_dir=run_dir, seed=seed, env=env, algorithm=algorithm or al.PPO())
    run = create_run(config)
    for index, value in enumerate(returns):
        append_metrics(run, {"env_steps": first + every * index, "episode_return": value, "loss": 1.0})
    return run_dir


def test_mean_minimum_and_maximum_over_seeds():
    make_run("a", np.full(20, 10.0), seed=0)
    make_run("b", np.full(20, 30.0), seed=1)
    make_run("c", np.full(20, 50.0), seed=2)
    (curve,) = read_curves(["a", "b", "c"])
    assert (curve.env, curve.algorithm, curve.num_seeds, curve.label) == ("CartPole-v1", "ppo", 3, "PPO (3 seeds)")
    np.testing.assert_allclose(curve.mean, 30.0)
    np.testing.assert_allclose(curve.low, 10.0)
    np.testing.assert_allclose(curve.high, 50.0)


def test_runs_of_different_lengths_are_compared_where_both_have_steps():
    make_run("a", np.arange(11.0), first=0)
    make_run("b", np.arange(6.0) + 2.0, first=200)
    (curve,) = read_curves(["a", "b"])
    assert curve.env_steps[0] == 200
    assert curve.env_steps[-1] == 700
    np.testing.assert_allclose(curve.mean, curve.env_steps / 100, atol=1e-12)
    np.testing.assert_allclose(curve.low, curve.high, atol=1e-12)


def test_runs_without_steps_in_common_have_no_mean():
    make_run("a", [1.0, 2.0], first=0)
    make_run("b", [1.0, 2.0], first=1000)
    with pytest.raises(ValueError, match="no env steps in common"):
        read_curves(["a", "b"])


def test_groups_are_environments_and_algorithms():
    make_run("a", [1.0, 2.0])
    make_run("b", [1.0, 2.0], algorithm=al.A2C())
    make_run("c", [1.0, 2.0], env="Acrobot-v1")
    curves = read_curves(["a", "b", "c"])
    assert [(curve.env, curve.algorithm) for curve in curves] == [
        ("CartPole-v1", "ppo"),
        ("CartPole-v1", "a2c"),
        ("Acrobot-v1", "ppo"),
    ]


def test_updates_without_a_value_are_left_out():
    make_run("a", [float("nan"), float("nan"), 3.0, 4.0])
    (curve,) = read_curves(["a"])
    assert curve.env_steps[0] == 200
    np.testing.assert_allclose(curve.mean[[0, -1]], [3.0, 4.0])


def test_smoothing_keeps_constants_and_averages():
    np.testing.assert_allclose(smooth(np.full(7, 2.5), 3), 2.5)
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 6.0, 0.0]), 3), [1.5, 3.0, 3.0, 3.0])
    np.testing.assert_array_equal(smooth(np.array([1.0, 5.0]), 1), [1.0, 5.0])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_suffix_says_which_format(suffix, tmp_path):
    make_run("a", np.linspace(0, 100, 50))
    output = plot(["a"], tmp_path / f"curve{suffix}")
    assert output == tmp_path / f"curve{suffix}"
    start = output.read_bytes()[:200]
    assert {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix] in start


def test_a_picture_says_what_it_shows():
    make_run("a", np.linspace(0, 100, 50))
    make_run("b", np.linspace(0, 50, 50), algorithm=al.A2C())
    plot(["a", "b"], "curve.svg")
    comments = Path("curve.svg").read_text()
    xml.etree.ElementTree.fromstring(comments)
    for text in ("CartPole-v1", "env steps", "episode return", "PPO", "A2C"):
        assert f"<!-- {text} -->" in comments, text


def test_a_panel_for_each_environment():
    make_run("a", [1.0, 2.0])
    make_run("b", [1.0, 2.0], env="Acrobot-v1")
    plot(["a"], "one.png")
    plot(["a", "b"], "two.png")
    (one_height, one_width, _), (two_height, two_width, _) = (
        matplotlib.image.imread(name).shape for name in ("one.png", "two.png")
    )
    assert two_height == 2 * one_height
    assert two_width == one_width


def test_another_metric():
    make_run("a", [1.0, 2.0])
    (curve,) = read_curves(["a"], metric="loss")
    np.testing.assert_allclose(curve.mean, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "episode_retur"}, r"no metric of this name \(did you mean 'episode_return'\?\). Received: metric="),
        ({"output": "curve.bmp"}, r"`output` must be a file name that ends in .png, .svg, .pdf. Received"),
        ({"output": "curve"}, r"`output` must be a file name that ends in .png, .svg, .pdf. Received"),
        ({"output": "no/such/folder/curve.png"}, "`output` can't be written: No such file or directory. Received"),
        ({"run_dirs": []}, "`run_dirs` must be at least one directory"),
        ({"run_dirs": ["nowhere"]}, "`run_dir` holds no run"),
    ],
)
def test_what_cannot_be_plotted(arguments, message):
    make_run("a", [1.0, 2.0])
    with pytest.raises(ValueError, match=message):
        plot(**{"run_dirs": ["a"], "output": "curve.png", **arguments})


def test_a_run_without_metrics(tmp_path):
    create_run(al.TrainConfig(run_dir="a"))
    with pytest.raises(ValueError, match="has no metrics"):
        plot(["a"], "curve.png")
    make_run("b", [float("nan")])
    with pytest.raises(ValueError, match="has no value yet in 'b'"):
        plot(["b"], "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_without_matplotlib_the_error_names_the_extra():
    make_run("a", [1.0, 2.0])
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from actor_learner.plot import plot\n"
        "try:\n    plot(['a'], 'curve.png')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "actor-learner[plots]" in done.stdout
