"""The report: what it says of finished, running, stopped, damaged and hostile runs, and that it stands alone."""

import html.parser
import json
import os
import re
import sys

import numpy as np
import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.reports.report import charts, report
from actor_learner.runs.directory import record_finished, run_lock
from actor_learner.system.installation import install_command
from tests.support.run_files import append_metrics, create_run

for _package in ("matplotlib", "jinja2"):
    pytest.importorskip(_package, reason=f"needs {_package}")
pytestmark = pytest.mark.slow

EVIL = "</pre><script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Page(html.parser.HTMLParser):
    """A page's text, and its elements with their attributes. Raises where elements aren't closed in order."""

    VOID = ("meta", "img", "link", "br", "hr", "input")

    def __init__(self, file):
        super().__init__()
        self._data, self.elements, self._open = [], [], []
        self.feed(file.read_text())
        assert not self._open
        self.text = " ".join(" ".join(self._data).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["style"]:
            self._data.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def make_run(folder, rows=60, **config):
    run = create_run(al.TrainConfig(**{"run_dir": folder, "total_steps": 6000, **config}))
    for index in range(rows):
        part = (index + 1) / 60
        row = {"env_steps": 100 * (index + 1), "updates": index + 1, "time_seconds": 2.0 * (index + 1)}
        shares = {"time/learning": 0.25, "time/collecting": 0.7, "time/env": 0.5, "time/acting": 0.1}
        append_metrics(
            run, {**row, **shares, "episode_return": 200 * part, "loss": float(np.cos(index)), "policy_lag": 0}
        )
    return run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "my run")


def test_a_finished_run(run):
    record_finished(run, 6000)
    file = report(run.path)
    assert file == run.path / "report.html"
    page = Page(file)
    assert "CartPole-v1, PPO finished my run" in page.text
    assert "return, last 100 episodes 200 env steps 6,000 updates 60 time 2:00 env steps per second 50" in page.text
    assert "learning 25% waiting 70% callbacks, checkpoints, publishing 5%" in page.text
    assert "environments 50% acting 10%" in page.text
    assert [figure["aria-label"] for figure in page.of("figure")] == [
        "episode_return over env steps",
        "loss over env steps",
    ]
    assert "Constant: policy_lag 0." in page.text
    assert "Actor restarts None." in page.text
    assert f"actor-learner train --config '{run.config}'" in page.text
    assert "keras" in page.text
    assert not any(words in page.text for words in ("Evaluation", "Video", "still going", "damaged", "stopped"))


def test_the_page_needs_nothing_beside_it(run):
    page = Page(report(run.path))
    assert not page.of("script")
    assert not page.of("link")
    (policy,) = [meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#"), tag
        assert "url(http" not in attributes.get("style", "")
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    referred = {attributes["xlink:href"][1:] for _, attributes in page.elements if "xlink:href" in attributes}
    assert referred <= set(identifiers)


def test_settings_that_are_not_the_default_stand_out(tmp_path):
    run = make_run(tmp_path / "run", algorithm=al.A2C(gamma=0.5), hidden_sizes=(8, 16), quiet=True)
    page = report(run.path).read_text()
    assert '<tr class="changed"><td>gamma</td><td>0.5</td></tr>' in page
    assert '<tr class="changed"><td>hidden_sizes</td><td>8,16</td></tr>' in page
    assert "<tr><td>name</td><td>a2c</td></tr>" in page
    assert "<tr><td>quiet</td><td>True</td></tr>" in page


def test_a_run_that_is_still_going_and_one_that_stopped(tmp_path):
    run = make_run(tmp_path / "run", rows=20)
    with run.metrics.open("a") as file:
        file.write('{"env_steps": 2100, "upd')
    with run_lock(run.path):
        page = Page(report(run.path))
    assert "PPO running run The run is still going" in page.text
    assert "env steps 2,000 of 6,000" in page.text
    assert "damaged" not in page.text
    page = Page(report(run.path))
    assert "PPO stopped run The run stopped before it had taken all its steps." in page.text
    assert f"actor-learner train --resume {run.path}" in page.text


STAMP = "2026-01-02 03:04:05,678"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            f"{STAMP} INFO x\n{STAMP} ERROR the run ended: OSError: no <b>\nTraceback\n",
            "failed run The run failed: OSError: no <b> ",
        ),
        (f"{STAMP} ERROR the run ended: OSError: no\n{STAMP} INFO the run is resumed\n", "stopped run The run stopped"),
        (f"{STAMP} ERROR the end\n", "stopped run The run stopped"),
    ],
)
def test_a_run_that_failed_says_so_first(tmp_path, log, said):
    run = make_run(tmp_path / "run", rows=20)
    run.logs.mkdir()
    (run.logs / "run.log").write_text(log)
    text = Page(report(run.path)).text
    assert f"CartPole-v1, PPO {said}" in text
    assert f"actor-learner train --resume {run.path}" in text


@pytest.mark.parametrize(
    ("metrics", "normalize_reward", "said"),
    [
        ({"explained_variance": [0.05] * 16}, False, "scale rewards (normalize_reward), check gamma."),
        ({"explained_variance": [-3.0] * 16}, True, "stays near 0, so values say nothing about returns: check gamma."),
        ({"explained_variance": [0.0] * 12 + [0.5] * 4}, False, ""),
        ({"explained_variance": [0.0] * 7}, False, ""),
        ({"approx_kl": [0.2] * 9}, False, "approx_kl stays above 0.1, "),
        ({"approx_kl": [0.2] * 8 + [0.01] * 8}, False, ""),
    ],
)
def test_metrics_that_stay_where_they_should_not_are_a_sentence(tmp_path, metrics, normalize_reward, said):
    run = make_run(tmp_path / "run", rows=0, algorithm=al.PPO(normalize_reward=normalize_reward))
    for name, values in metrics.items():
        for index, value in enumerate(values):
            append_metrics(run, {"env_steps": index, "updates": index, name: value})
    text = Page(report(run.path)).text
    assert (said in text) if said else ("stays" not in text)


def test_a_run_without_a_row_and_one_of_a_single_row(tmp_path):
    page = Page(report(create_run(al.TrainConfig(run_dir=tmp_path / "empty")).path))
    assert "No update has been recorded yet, so there are no curves." in page.text
    assert not page.of("svg")
    assert "updates 1 time 0:02" in Page(report(make_run(tmp_path / "run", rows=1).path)).text


def test_few_values_are_marked_where_they_are():
    def marks(count):
        rows = [{"env_steps": 100 * index, "evaluation/return": float(index % 7)} for index in range(count)]
        return str(charts(rows).groups["returns"][0].svg).count("<use ")

    assert marks(7) - marks(70) >= 7


def test_what_is_owed_has_a_curve_and_what_the_summary_says_has_none():
    rows = [{"env_steps": 9 * i, "updates": i, "gradient_steps_owed": i % 7, "time/learning": i % 3} for i in range(9)]
    assert [chart.metric for chart in charts(rows).groups["learning"]] == ["gradient_steps_owed"]
    assert len(charts(rows).groups) == 1


def test_damaged_rows_are_counted_and_left_out(run):
    with run.metrics.open("ab") as file:
        file.write(b'{"env_st\n\xff\xfe\n[1]\n')
        file.write(b"[" * 100_000 + b"\n")
    assert "4 of 64 lines of metrics.jsonl are damaged and left out." in Page(report(run.path)).text


def test_what_happened(run):
    causes = [f"actor 1 was killed (SIGKILL) {EVIL}", "actor 0 ended"]
    row = {"env_steps": 6100, "updates": 61, "time_seconds": 123, "actor_restarts": 2, "undone": 1.0}
    append_metrics(run, {**row, "actor_restart_causes": causes, "evaluation/return_mean": 123.5})
    incident = {
        "update": 61,
        "env_steps": 6000,
        "metrics_not_finite": ["loss", EVIL],
        "state_not_finite": ["a", "b", "c", "d"],
    }
    for name, content in (("60-1", json.dumps(incident)), ("60-2", "{damaged")):
        (run.incidents / name).mkdir(parents=True)
        (run.incidents / name / "incident.json").write_text(content)
    run.logs.mkdir()
    (run.logs / "run.log").write_text("first\n" * 100 + f"last {EVIL}\n")
    page = Page(report(run.path))
    assert f"6,100 2:03 {causes[0]} 6,100 2:03 actor 0 ended" in page.text
    assert "1 update was undone, because the result wasn't finite." in page.text
    assert f"61 6000 loss, {EVIL}, a, b, c and 1 others incidents/60-1" in page.text
    assert page.text.count("first") == 39
    assert "Evaluation return mean 123.5" in page.text
    assert not page.of("script")
    assert not page.of("img")


def test_a_strangers_run_runs_nothing_and_leaks_nothing(tmp_path):
    run = make_run(tmp_path / "run")
    config = json.loads(run.config.read_text())
    config |= {"env": EVIL, "total_steps": EVIL, "num_actors": [], "versions": {EVIL: EVIL}, EVIL: [EVIL]}
    config["algorithm"] = {"name": f"os:{EVIL}", "gamma": None, EVIL: {"callable": EVIL}}
    run.config.write_text(json.dumps(config))
    append_metrics(run, {"env_steps": 6100, EVIL: 1.0, "$x^{$": 1.0, "\x00\x1b": 3.0, "日本": 1e300})
    append_metrics(run, {"env_steps": 6200, EVIL: 2.0, "$x^{$": 2.0, "\x00\x1b": 4.0, "日本": -1e300})
    append_metrics(run, {"env_steps": 6300, **{f"many {index}": 1.0 for index in range(300)}})
    secret = tmp_path / "secret.mp4"
    secret.write_text("secret")
    (run.path / "linked.mp4").symlink_to(secret)
    os.mkfifo(run.path / "waiting.mp4")
    page = Page(report(run.path))
    assert not page.of("script")
    assert not page.of("img")
    assert not page.of("video")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "further metrics are left out" in page.text
    (run.path / "incidents").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="`run_dir` holds a link, incidents"):
        report(run.path)


def test_a_small_video_is_inside_and_a_large_one_is_linked(run, tmp_path, monkeypatch):
    monkeypatch.setattr("actor_learner.reports.report._MAX_EMBEDDED_BYTES", 10)
    (run.path / "videos").mkdir()
    (run.path / "videos" / "small.mp4").write_bytes(b"small")
    (run.path / "videos" / "large #1.mp4").write_bytes(b"larger than that")
    page = Page(report(run.path, tmp_path / "page.html"))
    assert [video["src"] for video in page.of("video")] == ["data:video/mp4;base64,c21hbGw="]
    assert [link["href"] for link in page.of("a")] == ["my%20run/videos/large%20%231.mp4"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: run.config.unlink(), "`run_dir` holds no run: the directory has no config.json. Received"),
        (lambda run: run.config.write_text("{"), "config.json is damaged .*Received: run_dir="),
        (
            lambda run: (run.path / "report.html").mkdir(),
            "`output` can't be written: .*Is a directory.* Received: output=",
        ),
    ],
)
def test_what_cannot_be_described_is_one_line(run, damage, message, capsys):
    damage(run)
    with pytest.raises(ValueError, match=message):
        report(run.path)
    assert cli.main(["report", str(run.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_jinja_the_error_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=re.escape(install_command("actor-learner[report]"))):
        report(run.path)
