import re
import sys
import xml.etree.ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import actor_learner as al
from actor_learner import cli
from actor_learner.reports.curves import _groups, interquartile_mean, read_curves, smooth, smoothing_window
from actor_learner.reports.plot import draw, plot
from actor_learner.system.installation import install_command
from tests.support.run_files import append_metrics, create_run

pytest.importorskip("matplotlib", reason="needs matplotlib")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(run_dir, returns, *, first=0, every=100, seed=0, env="CartPole-v1", algorithm=None, **more):
    config = al.TrainConfig(run_dir=run_dir, seed=seed, env=env, algorithm=algorithm or al.PPO(), **more)
    run = create_run(config)
    for index, value in enumerate(returns):
        steps = first + every * index
        row = {"env_steps": steps, "updates": index + 1, "time_seconds": steps / 50}
        append_metrics(run, {**row, "episode_return": value, "loss": 1.0})
    return run_dir


def test_mean_minimum_and_maximum_over_seeds():
    for seed, value in enumerate((10.0, 30.0, 50.0)):
        make_run(f"run{seed}", np.full(20, value), seed=seed)
    (curve,) = read_curves(["run0", "run1", "run2"])
    assert (curve.env, curve.metric, curve.num_runs) == ("CartPole-v1", "episode_return", 3)
    assert curve.label == "PPO (3 runs)"
    np.testing.assert_allclose(curve.middle, 30.0)
    np.testing.assert_allclose(curve.low, 10.0)
    np.testing.assert_allclose(curve.high, 50.0)


def test_runs_of_different_lengths_are_compared_where_both_have_steps():
    make_run("a", np.arange(11.0), first=0)
    make_run("b", np.arange(6.0) + 2.0, first=200)
    with (
        pytest.warns(UserWarning, match="ends where its shortest run does, at 700 steps; the longest goes on to 1,000"),
        pytest.warns(UserWarning, match="begins where its last run does, at 200 steps; the first begins at 0"),
    ):
        (curve,) = read_curves(["a", "b"])
    assert curve.x[0] == 200
    assert curve.x[-1] == 700
    np.testing.assert_allclose(curve.middle, curve.x / 100, atol=1e-12)
    np.testing.assert_allclose(curve.low, curve.high, atol=1e-12)


def test_runs_without_steps_in_common_have_no_mean():
    make_run("a", [1.0, 2.0], first=0)
    make_run("b", [1.0, 2.0], first=1000)
    with pytest.raises(ValueError, match="no range of steps in common"):
        read_curves(["a", "b"])


def test_groups_are_environments_and_algorithms():
    make_run("a", [1.0, 2.0])
    make_run("b", [1.0, 2.0], env="Pendulum-v1", algorithm=al.CrossQ())
    make_run("c", [1.0, 2.0], env="Acrobot-v1")
    curves = read_curves(["a", "b", "c"])
    assert [(curve.env, curve.group) for curve in curves] == [
        ("CartPole-v1", "PPO"),
        ("Pendulum-v1", "CrossQ"),
        ("Acrobot-v1", "PPO"),
    ]


def test_runs_with_different_metrics_are_one_line_that_names_the_run():
    make_run("a", [1.0, 2.0])
    append_metrics(create_run(al.TrainConfig(run_dir="b")), {"env_steps": 1, "updates": 1, "a/b": 2.0})
    with pytest.raises(ValueError, match="^The run 'b' has no such metric; it has env_steps, updates, a/b"):
        read_curves(["a", "b"], ["loss"])


def test_folders_without_anything_to_draw_are_left_out():
    make_run("a", [1.0, 2.0])
    Path("failed/logs").mkdir(parents=True)
    append_metrics(create_run(al.TrainConfig(run_dir="early")), {"env_steps": 1, "updates": 1})
    create_run(al.TrainConfig(run_dir="empty"))
    create_run(al.TrainConfig(run_dir="damaged")).config.write_text("{")
    others = {"failed": "only the logs", "early": "no value yet", "empty": "no metrics", "damaged": "is damaged"}
    with pytest.warns(UserWarning, match="^left out: ") as warned:
        (curve,) = read_curves(["failed", "a", "early", "empty", "damaged"])
    assert curve.num_runs == 1
    for (path, reason), warning in zip(others.items(), warned, strict=True):
        assert re.search(f"^left out: .*{reason}.*{path}", str(warning.message))
    with pytest.raises(ValueError, match="no config.json, only the logs"):
        read_curves(["failed", "early"])
    with pytest.raises(ValueError, match="isn't there"):
        read_curves(["a", "b"])


def test_seconds_begin_at_the_start_of_the_run():
    make_run("a", np.arange(5.0), first=800)
    for x, left in (("seconds", True), ("steps", False)):
        figure = draw(read_curves(["a"], x=x), x=x, band="range", smoothing=0)
        assert bool(figure.axes[0].get_xlim()[0] == 0) is left


def test_seconds_and_updates_as_x_from_the_first_that_has_a_value():
    make_run("a", [float("nan"), 2.0, 3.0], every=100)
    (seconds,), (updates,) = read_curves(["a"], x="seconds"), read_curves(["a"], x="updates")
    assert (seconds.x[0], seconds.x[-1]) == (2, 4)
    assert (updates.x[0], updates.x[-1]) == (2, 3)
    np.testing.assert_allclose(updates.middle[[0, -1]], [2.0, 3.0])


def test_groups_by_a_key_of_the_config_in_its_order():
    make_run("a", [1.0, 2.0], algorithm=al.PPO(gamma=0.99))
    make_run("b", [3.0, 4.0], algorithm=al.PPO(gamma=0.9))
    make_run("c", [5.0, 6.0], algorithm=al.PPO(gamma=0.9), seed=1)
    for key in ("algorithm.gamma", "gamma"):
        curves = read_curves(["a", "b", "c"], group_by=[key])
        assert [curve.label for curve in curves] == ["gamma=0.9 (2 runs)", "gamma=0.99"]
    both = read_curves(["a", "b"], group_by=["algorithm", "gamma"])
    assert [curve.label for curve in both] == ["PPO, gamma=0.99", "PPO, gamma=0.9"]


def test_runs_with_other_settings_in_one_curve_are_warned_of():
    make_run("a", [1.0, 2.0], algorithm=al.PPO(gamma=0.99))
    make_run("b", [1.0, 2.0], algorithm=al.PPO(gamma=0.9), seed=1)
    with pytest.warns(UserWarning, match="2 runs of CartPole-v1 .* PPO, differ in algorithm.gamma: .*--group-by algo"):
        read_curves(["a", "b"])
    make_run("c", [1.0, 2.0], algorithm=al.PPO(gamma=0.9), acting="device", seed=2)
    read_curves(["b", "c"])
    with pytest.warns(UserWarning, match="differ in acting: .*--group-by acting"):
        read_curves(["b", "c"], x="seconds")


def make_five_runs():
    for seed, value in enumerate((0.0, 100.0, 10.0, 20.0, 30.0)):
        make_run(f"run{seed}", np.full(3, value), seed=seed)
    return [f"run{seed}" for seed in range(5)]


def test_quartiles_are_around_the_mean_of_the_middle_half():
    (curve,) = read_curves(make_five_runs(), band="quartiles")
    np.testing.assert_allclose(curve.middle, 20.0)
    np.testing.assert_allclose(curve.low, 10.0)
    np.testing.assert_allclose(curve.high, 30.0)


def test_the_interquartile_mean_is_that_of_scipy():
    values = np.random.default_rng(0).normal(size=(9, 4))
    for runs in range(1, 10):
        np.testing.assert_allclose(
            interquartile_mean(values[:runs]), stats.trim_mean(values[:runs], 0.25), err_msg=runs
        )


def test_the_bootstrap_interval_is_that_of_scipy():
    (curve,) = read_curves(make_five_runs(), band="bootstrap")
    expected = stats.bootstrap(
        ([0.0, 100.0, 10.0, 20.0, 30.0],),
        lambda values, axis: stats.trim_mean(values, 0.25, axis=axis),
        method="percentile",
        rng=1,
    ).confidence_interval
    np.testing.assert_allclose(curve.middle, 20.0)
    np.testing.assert_allclose(curve.low, expected.low, atol=2)
    np.testing.assert_allclose(curve.high, expected.high, atol=8)


def test_a_hostile_run_is_drawn_as_it_stands_or_refused():
    run = create_run(al.TrainConfig(run_dir="a", env="<b>$x^{$ & co"))
    for steps in ("null", "3", "1", str(10**400), "[]"):
        with run.metrics.open("a") as file:
            file.write(f'{{"env_steps": {steps}, "episode_return": 1e300}}\n')
    plot(["a"], "curve.svg", smoothing=0)
    xml.etree.ElementTree.fromstring(Path("curve.svg").read_text())


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


def test_counts_are_not_smoothed():
    """What only rises, or only falls, would bend at its ends."""
    values = np.arange(100.0)
    make_run("a", values)
    (curve,) = read_curves(["a"], smoothing=0.1)
    assert not curve.smoothed
    np.testing.assert_allclose(curve.middle, curve.x / 100)
    assert [smoothing_window(row, 0.1) for row in (values, -values, values % 7, values * 0)] == [1, 1, 10, 1]


def test_panels_of_an_environment_share_their_x_axis():
    """A metric that begins later is drawn below where the others are."""
    run = create_run(al.TrainConfig(run_dir="a"))
    for step in range(0, 1000, 100):
        row = {"env_steps": step, "updates": step, "time_seconds": step, "episode_return": 1.0}
        append_metrics(run, {**row, "later": 2.0} if step >= 500 else row)
    figure = draw(read_curves(["a"], ["episode_return", "later"]), x="steps", band="range", smoothing=0)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert figure.axes[0].get_xlim()[0] <= 0
    assert figure.axes[0].get_xlim()[1] >= 900


def test_a_picture_says_what_it_shows():
    swings = 10 * np.sin(np.arange(50))
    make_run("a", np.linspace(0, 100, 50) + swings)
    make_run("b", np.linspace(0, 50, 50) + swings, algorithm=al.A2C())
    make_run("c", np.linspace(0, 50, 50) + swings, seed=1)
    plot(["a", "b", "c"], "curve.svg", smoothing=0.04)
    comments = Path("curve.svg").read_text()
    xml.etree.ElementTree.fromstring(comments)
    said = ("CartPole-v1", "env steps", "episode return", "(moving average, 4% of the updates)", "A2C")
    for text in (*said, "PPO (2 runs)", "mean, minimum to maximum"):
        assert f"<!-- {text} -->" in comments, text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": ["episode_retur"]}, r"'a' has no such metric \(did you mean 'episode_return'\?\). Received: m"),
        ({"metrics": "loss"}, "`metrics` must be a sequence of at least one name"),
        ({"x": "step"}, r"`x` must be one of 'steps', 'seconds', 'updates' \(did you mean 'steps'\?\)"),
        ({"band": "minmax"}, "`band` must be one of 'range', 'quartiles', 'bootstrap', 'none'"),
        ({"smoothing": 2.0}, "`smoothing` must be from 0 to 1"),
        ({"group_by": ["algorithm.gama"]}, r"`group_by` .* config.json \(did you mean 'algorithm.gamma'\?\). Received"),
        ({"output": "curve.bmp"}, r"`output` must be a file name that ends in .png, .svg, .pdf. Received"),
        ({"output": "no/such/folder/curve.png"}, "`output` can't be written: No such file or directory. Received"),
        ({"run_dirs": []}, "`run_dirs` must be at least one directory"),
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


def test_the_command_line_draws_groups_of_several_metrics(capsys):
    make_run("a", [1.0, 2.0], algorithm=al.PPO(gamma=0.99))
    make_run("b", [3.0, 4.0], algorithm=al.PPO(gamma=0.9))
    flags = "--metric episode_return,loss --x updates --group-by gamma,seed --band quartiles --smoothing 0".split()
    assert cli.main(["plot", "a", "b", *flags, "--output", "curve.svg"]) == 0
    comments = Path("curve.svg").read_text()
    for text in ("loss", "episode return", "updates", "gamma=0.9, seed=0", "gamma=0.99, seed=0"):
        assert f"<!-- {text} -->" in comments, text
    assert capsys.readouterr().out == "curve.svg\n"


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    make_run("a", [1.0, 2.0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape(install_command("actor-learner[plots]"))):
        plot(["a"], "curve.png")


def test_legends_print_as_few_digits_as_tell_groups_apart():
    runs = [SimpleNamespace(config={"lr": rate}) for rate in (0.0006380556092044456, 0.0006380556192044456, 1e-3)]
    assert list(_groups(runs[1:], ["lr"])) == ["lr=0.0006381", "lr=0.001"]
    assert len(_groups(runs, ["lr"])) == 3
