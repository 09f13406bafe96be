"""The scripts in examples/ run briefly, in this process; docs/examples.md has their results at full length."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import actor_learner as al
from tests.support.processes import patience

EXAMPLES = Path(__file__).parents[2] / "examples"
MEANS = {
    "own_learner": (15_000, 30, 500),  # from about 20
    "two_inputs": (1_280, -2.9, 0),  # within the diagonal of the table
    "cnn": (1_024, -1, 1),
    "behaviour_cloning": (6_000, -199.9, 0),  # which chance doesn't reach
    "curiosity": (4_096, -200.1, 0),
    "own_memory": (1_024, 0.05, 1),  # which is too short to learn
    "minigrid_memory": (2_048, 0.001, 0.999),
    "masked_dqn": (2_500, -0.999, 10),
    "offline": (480, -1_900, 0),
    "replay_dataset": (1_500, 8, 500),
    "tic_tac_toe": (4_096, 0.4, 1.0),
    "connect_four": (8_192, -400, 3_000),  # a rating
    "simple_spread": (4_800, -300, -10),
    "hidden_masses": (1_024, 1_200, 4_600),  # from about 2,343
    "several_agents": (5_000, 1.01, 50),  # from about 1.4
}
"""Env steps of examples that return a mean return, and between which numbers it must be then."""
NEEDS = {"minigrid_memory": "minigrid", "offline": "minari", "hidden_masses": "mujoco"}
TESTED = {*MEANS, *re.findall(r"^def test_(\w+)", Path(__file__).read_text(), re.MULTILINE)}


def load(name):
    """Load an example as a module that can't be imported, so that its classes travel to actors by value."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _runs_go_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_example_is_short_tested_and_says_how_it_is_run():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert "examples/quickstart.ipynb)" in page
    for script in EXAMPLES.glob("*.py"):
        code = script.read_text(encoding="utf-8")
        assert len(code.splitlines()) < 80, script
        said = f"python examples/{script.name} [" in ast.get_docstring(ast.parse(code))
        assert said or script.stem == "serve_policy", script
        assert script.stem in TESTED
        assert f"examples/{script.name})" in page


@pytest.mark.thorough
def test_quickstart(tmp_path):
    """The notebook as it is committed, without outputs: view, curve, video and an episode of the exported policy."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    for package in ("ipykernel", "matplotlib", "moviepy", "pygame"):
        pytest.importorskip(package, reason=f"needs {package}")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    code = {cell["id"]: cell for cell in notebook.cells if cell["cell_type"] == "code"}
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code.values())
    options = {"timeout": int(patience(200)), "startup_timeout": int(patience(120))}
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **options)
    client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "QUICKSTART_STEPS": "2000"})
    kinds = {name: {kind for out in cell["outputs"] for kind in out.get("data", ())} for name, cell in code.items()}
    assert "text/html" in kinds["train"]
    assert "image/png" in kinds["plot"]
    assert "<video" in "".join(out["data"].get("text/html", "") for out in code["evaluate"]["outputs"] if "data" in out)
    printed = "".join(out["text"] for out in code["deploy"]["outputs"])  # in pieces, where the kernel wrote so
    assert float(printed.removeprefix("return of the exported policy:")) >= 8


@pytest.mark.usefixtures("without_xla")
@pytest.mark.slow
def test_own_simulator():
    assert load("own_simulator").main(total_steps=4_000) < 0.4  # from about 0.6


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
@pytest.mark.parametrize("name", MEANS)
def test_what_it_learns(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}")
    total_steps, least, most = MEANS[name]
    found = load(name).main(total_steps=total_steps, **{"bc_coef": 1.0} if name == "behaviour_cloning" else {})
    assert least <= getattr(found, "mean", found) <= most


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_own_loop():
    assert load("own_loop").main(total_steps=2_000) >= 8  # the shortest episode of CartPole
    assert al.Learner.load("own-loop").env_steps >= 1_900  # rows that only reset count for no step


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_masked_knapsack():
    """Without the mask, an item could be taken twice, and the share would exceed 1."""
    example = load("masked_knapsack")
    share = example.main(total_steps=512)
    assert 0 < share <= 1
    env = example.Knapsack()
    observation, _ = env.reset(seed=3)
    env.step(2)
    observation, *_ = env.step(5)
    assert not observation["action_mask"][[2, 5]].any()
    assert observation["action_mask"][example.ITEMS]


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_curriculum():
    example = load("curriculum")
    reached = []
    example.Curriculum.on_train_end = lambda self, logs=None: reached.append(self.difficulty)
    example.main(total_steps=15_000)
    assert reached[0] > 2


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_auxiliary_head():
    example = load("auxiliary_head")
    error = example.main(total_steps=8_000)["prediction_error"]
    assert 0 < error < 30  # it begins above 40: rewards are -16 to 0


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_warm_start():
    imitated, trained = load("warm_start").main(total_steps=2_048)
    assert imitated > -500  # the rule swings up; a random policy needs all of its 500 steps
    assert trained >= -500


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_kl_penalty():
    cloned, trained = load("kl_penalty").main(total_steps=2_048)
    assert min(cloned, trained) > -180  # the rule takes about 120 steps; a random policy needs all of its 200


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_fine_tune():
    example = load("fine_tune")
    example.main(total_steps=512)
    (first,) = Path("runs/CartPole-v1").iterdir()
    (second,) = (path for path in Path("runs").glob("*crossed*/*"))
    before, after = (
        {weight.path: weight.numpy() for weight in al.load_network(run).weights} for run in (first, second)
    )
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name.split("/")[0] for name in changed} == {"logits", "value"}


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_population():
    example = load("population")
    worst, best = example.main(total_steps=4_000, members=2)
    assert worst.fitness <= best.fitness
    for copied, weight in zip(worst.learner.get_weights(), best.learner.get_weights(), strict=True):
        np.testing.assert_array_equal(copied, weight)
    rates = [float(member.learner.optimizer.learning_rate) for member in (worst, best)]
    assert rates[0] / rates[1] == pytest.approx(0.8) or rates[0] / rates[1] == pytest.approx(1.25)


@pytest.mark.usefixtures("without_xla")
@pytest.mark.thorough
def test_demonstrations(tmp_path, capsys):
    assert load("demonstrations").main(total_steps=200, folder=tmp_path).mean > -100
    steps, mean = re.match(r"(\d+) steps, \d+ episodes, mean return ([\d.]+)", capsys.readouterr().out).groups()
    assert int(steps) > 1_000
    assert float(mean) > 90
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["buffer_rows"] > 1_000


@pytest.mark.thorough
def test_ray_tune(tmp_path):
    """Two rounds of a trial, in a process of their own: Tune leaves its handler of SIGINT there."""
    pytest.importorskip("ray.tune", reason="needs ray")
    few = "import ray_tune; ray_tune.TRIALS, ray_tune.ROUNDS = 1, 2; print('mean', ray_tune.main(total_steps=4_000))"
    # RAY_AUTH_MODE: else Ray writes a token into the home folder
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(EXAMPLES)}
    environment["RAY_worker_niceness"] = "0"  # 15 by default: on a busy machine a trial would hardly run
    words = [sys.executable, "-c", few]
    done = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=patience(200), check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rpartition("mean ")[2]) >= 8


@pytest.mark.slow
def test_serve_policy(tmp_path):
    """The server runs in a process of its own, to show that it loads no TensorFlow."""
    spaces = load("own_simulator")
    network = al.default_network(spaces.OBSERVATION_SPACE, spaces.ACTION_SPACE, hidden_sizes=(8,))
    policy = al.Policy.from_network(network, spaces.ACTION_SPACE)
    with serving(policy, tmp_path) as (server, url):
        observations = np.array([[0.5, -0.25], [-1.0, 0.75]], np.float32)
        assert post(url, observations.tolist()) == (200, {"action": policy.act(observations).tolist()})
        assert post(url, observations[0].tolist()) == (200, {"action": policy.act(observations[0]).tolist()})
        status, answer = post(url, [1.0, 2.0, 3.0])
        assert status == 400
        assert "observation" in answer["error"]
        if os.path.exists(maps := f"/proc/{server.pid}/maps"):
            loaded = Path(maps).read_text()
            assert "litert" in loaded
            assert "tensorflow" not in loaded


@pytest.mark.thorough
def test_serve_policy_remembers_each_session(tmp_path):
    spaces = load("own_simulator")
    network = al.default_network(spaces.OBSERVATION_SPACE, spaces.ACTION_SPACE, memory="gru", memory_size=8)
    rng = np.random.default_rng(0)
    network.set_weights([weight + 0.2 * rng.standard_normal(weight.shape) for weight in network.get_weights()])
    policy = al.Policy.from_network(network, spaces.ACTION_SPACE)
    observations = rng.normal(size=(4, 2)).tolist()
    alone = [policy.act(observation).tolist() for observation in observations]
    policy.reset()
    with serving(policy, tmp_path) as (_, url):
        for name in ("a", "b", "a&start=1"):
            queries = [name, *3 * name[:1]]
            answers = [post(f"{url}?session={query}", x) for query, x in zip(queries, observations, strict=True)]
            assert answers == [(200, {"action": action}) for action in alone]
        assert post(f"{url}?session=c", observations)[0] == 400  # a session has one observation at a time
        assert post(f"{url}?sesion=c", observations[0])[0] == 400


@contextlib.contextmanager
def serving(policy, folder):
    """Run the server of a policy; yields the process and its URL."""
    policy.exported.save(folder / "run" / "policy")
    command = [sys.executable, EXAMPLES / "serve_policy.py", folder / "run", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server, server.stdout.readline().strip()
        finally:
            server.kill()


def post(url, content):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(content).encode()), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as answer:
        return answer.code, json.load(answer)
