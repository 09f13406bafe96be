import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.algorithms import BY_NAME
from actor_learner.cli.evaluate import _as_text as as_text
from actor_learner.cli.output import one_line_warnings
from actor_learner.cli.parser import in_flags
from actor_learner.cli.train import train_config
from actor_learner.evaluate import Evaluation
from actor_learner.runs.directory import read_config
from actor_learner.runs.metrics import read_metrics
from actor_learner.system.installation import install_command
from tests.support.processes import patience

COMMAND = [sys.executable, "-P", "-m", "actor_learner.cli"]

OWN_ALGORITHM = """
from dataclasses import dataclass, field
import actor_learner as al

@dataclass(frozen=True, kw_only=True)
class Cautious(al.PPO):
    caution: float = field(default=0.5, metadata={"help": "how much of 100% is held back"})
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that the command line made, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = ["train", "--total-steps", "1500", "--num-workers", "1", "--run-dir", "a run", "--gamma", "0.97"]
    done = subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return folder / "a run", done


@pytest.mark.slow
def test_ctrl_c_before_the_command_line_is_imported_is_no_traceback():
    program = (
        "import runpy, signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'actor_learner.cli':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv = ['actor-learner', '--help']\n"
        "runpy.run_module('actor_learner', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", [pytest.param("2>&-", marks=pytest.mark.thorough), "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_lead_nowhere(closed, tmp_path):
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom actor_learner import cli\n"
        "assert cli.main(['train', '--print-config']) == 0\n"
        "assert cli.main(['train', 'CartPol-v1']) == 2\n"
        "assert sys.stdin.read() == ''\n"
        "assert os.open('file', os.O_CREAT) > 2\n"
        "Path('found').write_text(' '.join(str(os.get_inheritable(number)) for number in range(3)))\n"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience(60), check=True)
    assert Path("found").read_text() == "True True True"


def config_of(*argv):
    return train_config(cli.parse(["train", *argv]))


def refusal_of(capsys, *argv):
    """The one line that a refused command prints."""
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line, rest = captured.err.split("\n", 1)
    assert rest == ""
    prefix = "actor-learner: error: "
    assert line.startswith(prefix)
    assert os.listdir() == []
    return line.removeprefix(prefix)


def help_of(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        cli.main([*argv, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (["--num-workers=3"], {"num_actors": 3}),
        (["--total-steps", "1e6"], {"total_steps": 1_000_000}),
        (["--total-steps", "1.25e2"], {"total_steps": 125}),
        (["--total-steps", "500_000"], {"total_steps": 500_000}),
        (["--env-kwargs", '{"continuous": true}'], {"env_kwargs": {"continuous": True}}),
        (["--hidden-sizes", "256,128"], {"hidden_sizes": (256, 128)}),
        (
            ["--wrappers", "here:One,there:Two", "--wrapper-kwargs", '{"Two": {"size": 3}}'],
            {"wrappers": ("here:One", "there:Two"), "wrapper_kwargs": {"Two": {"size": 3}}},
        ),
        (["--wrappers", "none"], {"wrappers": ()}),
        (["--info-keys", "is_success,laps"], {"info_keys": ("is_success", "laps")}),
        (["--no-orthogonal-init"], {"orthogonal_init": False}),
        (["--initial-log-std", "-2"], {"initial_log_std": -2.0}),
        (["--channel-axis", "-1"], {"channel_axis": -1}),
        (["--channel-axis", "none"], {"channel_axis": None}),
        (["--device", "cpu", "--quiet", "--overwrite"], {"device": "cpu", "quiet": True, "overwrite": True}),
        (
            ["--checkpoint-minutes", "none", "--checkpoint-updates", "5"],
            {"checkpoint_minutes": None, "checkpoint_updates": 5},
        ),
        (["--actor-timeout", "5", "--on-env-error", "raise"], {"actor_timeout": 5.0, "on_env_error": "raise"}),
        (["--run-dir", "here", "--init-from", "there"], {"run_dir": "here", "init_from": "there"}),
        (["--callback", "a:b", "--callback", "c:d"], {"callbacks": ["a:b", "c:d"]}),
        (["--callback", "none"], {"callbacks": []}),
    ],
)
def test_flags_become_fields_of_the_config(flags, fields):
    assert config_of("--preset", "none", *flags) == al.TrainConfig(**fields)


@pytest.mark.parametrize(
    ("flags", "algorithm"),
    [
        (["--learning-rate", "1e-3"], al.PPO(learning_rate=1e-3)),
        (["--learning-rate", "linear_1e-3"], al.PPO(learning_rate="linear_1e-3")),
        (["--ent-coef", "-1e-2"], al.PPO(ent_coef=-1e-2)),
        (["--minibatch-size", "none", "--target-kl", "0.02"], al.PPO(minibatch_size=None, target_kl=0.02)),
        (["--max-grad-norm", "none"], al.PPO(max_grad_norm=None)),
        (["--clip-reward", "sign", "--no-normalize-advantage"], al.PPO(clip_reward="sign", normalize_advantage=False)),
        (["--algorithm", "a2c", "--gae-lambda", "0.9"], al.A2C(gae_lambda=0.9)),
    ],
)
def test_flags_become_hyperparameters(flags, algorithm):
    assert config_of("--preset", "none", *flags).algorithm == algorithm


def test_every_field_is_a_flag_with_its_help(capsys):
    assert "--clip-range" not in help_of(capsys, "train", "--algorithm", "a2c")
    text = " ".join(help_of(capsys, "train").split()).replace("--[no-]", "--")
    for field in [*dataclasses.fields(al.TrainConfig), *dataclasses.fields(al.PPO)]:
        if field.name in ("env", "callbacks", "optimizer"):
            continue  # `--callback` is that of `callbacks`
        assert f"--{field.name.replace('_', '-')}" in text
        assert re.split(r"[;.-]|\w+_", field.metadata["help"])[0] in text, field.name


@pytest.mark.parametrize("algorithm", BY_NAME)
def test_help_has_no_words_of_python(algorithm, capsys):
    text = re.sub("{[a-z0-9_,]+}", "", help_of(capsys, "train", "--algorithm", algorithm))
    names = {name for name in re.findall(r"(?<![/\w])[a-z]+(?:_[a-z]+)+", text) if not name.startswith("update_")}
    values = {"next_step", "same_step", "is_success", "max_episode_steps", "learning_rate", "privileged_state"}
    assert names <= values, "values, not settings"
    assert re.findall(r"\b(?:al|keras)\.|Python|None\b|True\b|False\b|\w\(\.\.\.", text) == []


@pytest.mark.parametrize("algorithm", BY_NAME)
def test_the_short_help_is_one_screen_and_begins_with_the_algorithms_flags(algorithm, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["train", "--algorithm", algorithm, "-h"])
    shown = capsys.readouterr().out
    flags = re.findall(r"^  (--[\w-]+)", shown, re.MULTILINE)
    assert shown.count("\n") <= 60
    assert flags[:2] == ["--help", "--learning-rate"]
    assert "--total-steps" in flags
    assert "--max-restarts" not in flags
    assert "linear_1e-3" in shown


def test_without_a_command_the_help_is_shown(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 0
    assert re.search(r"commands:\n +COMMAND\n +train ", capsys.readouterr().out)


def test_flags_that_do_nothing_for_behaviour_cloning_arent_there(capsys):
    text = help_of(capsys, "train", "--algorithm", "bc")
    assert "--hindsight" in text
    assert not re.search("--(?:gamma|tau|n-step|learning-starts|updates-per-step|clip-reward)", text)


@pytest.mark.parametrize(
    ("argv", "printed"),
    [
        (["HalfCheetah-v4"], "HalfCheetah-v5 has one: --preset HalfCheetah-v5 takes its settings.\n"),
        (["FrozenLake-v1"], ""),
        (["ALE/Breakout-v5"], """ --env-kwargs '{"episodic_life": true}'"""),
        (["Walker2d-v5"], " --normalize-observation "),
    ],
)
def test_a_preset_is_printed_as_flags(argv, printed, capsys):
    arguments = cli.parse(["train", *argv])
    cli.train._print_preset(arguments, train_config(arguments))
    shown = capsys.readouterr().out
    assert printed in shown
    assert bool(printed) is bool(shown)


def test_an_algorithm_of_ones_own_in_the_working_directory(tmp_path, capsys):
    (tmp_path / "cautious.py").write_text(OWN_ALGORITHM)
    text = help_of(capsys, "train", "--algorithm", "cautious:Cautious")
    assert "how much of 100% is held back" in " ".join(text.split())
    config = config_of("--algorithm", "cautious:Cautious", "--caution", "0.25")
    assert config.algorithm.caution == 0.25
    assert config.algorithm.epochs == al.preset("CartPole-v1").algorithm.epochs


def test_a_preset_is_the_default_overridden_refused_or_borrowed():
    assert config_of() == al.preset("CartPole-v1")
    assert config_of("HalfCheetah-v5", "--seed", "3") == al.preset("HalfCheetah-v5", seed=3)
    overridden = al.preset("CartPole-v1", gamma=0.5, unroll_length=16)
    assert config_of("CartPole-v1", "--gamma", "0.5", "--unroll-length", "16") == overridden
    assert config_of("--preset", "none") == al.TrainConfig()
    assert config_of("FrozenLake-v1") == al.TrainConfig(env="FrozenLake-v1")
    assert config_of("Hopper-v5", "--preset", "HalfCheetah-v5") == al.preset("HalfCheetah-v5").replace(env="Hopper-v5")
    assert config_of("--algorithm", "a2c") == al.preset("CartPole-v1", algorithm="a2c")
    assert config_of("Pendulum-v1", "--algorithm", "a2c") == al.TrainConfig(env="Pendulum-v1", algorithm=al.A2C())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--num-actors", "-1"], "`--num-actors` must be an integer of at least 0. Received: --num-actors -1"),
        (["train", "--learning-rate", "-1e-3"], "Received: --learning-rate -0.001"),
        (["train", "--learning-rate", "fast"], "Received: --learning-rate fast"),
        (["train", "--num-actors", "two"], "--num-workers: must be an integer. Received: two"),
        (["train", "--total-steps", "1.2345e2"], "--total-steps: must be an integer. Received: 1.2345e2"),
        (["train", "--num-actors"], "argument --num-actors/--num-workers: expected one argument"),
        (["train", "--device", "tpu"], "argument --device: must be auto, cpu, gpu. Received: tpu"),
        (["train", "--hidden-sizes", "64,x"], "must be integers separated by commas. Received: 64,x"),
        (["train", "--env-kwargs", "{"], "argument --env-kwargs: must be a JSON object"),
        (["train", "--env-kwargs", "[1]"], "must be a JSON object. Received: [1]"),
        (["train", "--algorithm", "poo"], "(did you mean 'ppo'?). Received: --algorithm poo"),
        (["train", "--algorithm", "SAC"], "(did you mean 'sac'?). Received: --algorithm SAC"),
        (["train", "--algorithm", "nowhere:Class"], "can't import 'nowhere'"),
        (["train", "--lerning-rate", "1"], "(did you mean '--learning-rate'?); --help lists all. Received: --lerning-"),
        (["train", "--learning", "1"], "There is no such flag"),
        (["train", "--outside", "5"], "There is no such flag (an environment's own arguments go into --env-kwargs)"),
        (["train", "--algorithm", "a2c", "--clip-range", "0.1"], "for this algorithm (--algorithm ppo has it)"),
        (["train", "--clip-coef", "0.1"], "There is no such flag (did you mean '--clip-range'?)"),
        (["train", "CartPole-v1", "Acrobot-v1"], "Unexpected argument; see --help. Received: Acrobot-v1"),
        (["train", "CartPol-v1"], "`CartPole-v1`"),
        (["train", "nowhere:make"], "nowhere"),
        (["train", "--preset", "CartPol-v1"], "(did you mean 'CartPole-v1'?)"),
        (["train", "--init-from", "nowhere"], "Received: --init-from nowhere"),
        (["train", "--run-dir", "/dev/null/run"], "`--run-dir` can't be written: Not a directory. Received"),
        (["train", "--config", "nowhere.toml"], "`--config` can't be read: No such file or directory. Received: --con"),
        (["train", "--resume", "nowhere"], "`--resume` holds no run: the directory isn't there. Received: --resume n"),
        (["train", "--quiet", "--verbose"], "`--quiet` and `--verbose` exclude each other. Received: --quiet, --v"),
        (["train", "--devices", "2", "--backend", "tensorflow"], "Received: --devices 2, --backend tensorflow"),
        (["train", "nowhere:make"], "Received: ENV nowhere:make"),
        (["train", "--network", "json:no_such"], "module 'json' has no attribute 'no_such'"),
        (["evaluate"], "the following arguments are required: RUN_DIR"),
        (["evaluate", "nowhere"], "`RUN_DIR` holds no run: the directory isn't there. Received: RUN_DIR nowhere"),
        (["evaluate", "nowhere", "--episode", "3"], "(did you mean '--episodes'?)"),
        (["plot", "nowhere"], "`RUN_DIR` holds no run: the directory isn't there. Received: RUN_DIR nowhere"),
        (["plot", "nowhere", "--output", "x.gif"], "`--output` must be a file name that ends in .png, .svg, .pdf."),
        (["trian"], "(did you mean 'train'?)"),
        (
            ["train", "--learning_rate", "1"],
            "(did you mean '--learning-rate'?); --help lists all. Received: --learning_ra",
        ),
        (
            ["train", "--algorithm", "bc", "--gamma", "1"],
            "for this algorithm (--algorithm a2c or crossq or dqn or impala",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv, message, capsys):
    assert message in refusal_of(capsys, *argv)


@pytest.mark.parametrize(
    ("said", "words", "shown"),
    [
        ("`a.toml`", [], "`a.toml`"),
        ("a.toml, line 1: `seed` must be 0", ["--config", "a.toml"], "a.toml, line 1: `seed` must be 0"),
        ("a.toml: `seed` must be 0", ["--config=a.toml"], "a.toml: `seed` must be 0"),
        ("resume it (resume=True, --resume)", [], "resume it (--resume)"),
        ("saved; --resume (resume=True) goes on", [], "saved; --resume goes on"),
        ("`seed` is 1, or None. Received: seed=None", [], "`--seed` is 1, or none. Received: --seed none"),
        ("al.PPO(gamma=1)\n  File `seed`, seed=None", [], "al.PPO(gamma=1)\n  File `seed`, seed=None"),
        ("Received: run_dir='a b', caution=2", ["--caution", "2"], "Received: --run-dir 'a b', --caution 2"),
        ("Received: run_dir='a'", ["--resume", "a"], "Received: --resume a"),
        ("`reset(self, seed=None)` of seed=1", [], "`reset(self, seed=None)` of --seed 1"),
        ("Received: epochs=64", ["--epochs=64"], "Received: --epochs 64"),
        ("Received: epochs=64", [], "Received: --epochs 64 (not typed: from a preset, a file or the defaults)"),
    ],
)
def test_messages_speak_of_flags(said, words, shown):
    assert in_flags(said, ["train", *words]) == shown


def test_warnings_speak_of_flags():
    with one_line_warnings(["train"]):
        shown = warnings.formatwarning("lower `num_actors`", UserWarning, "file.py", 1)
    assert shown == "actor-learner: warning: lower `--num-actors`\n"


def test_another_backend_is_refused(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    assert "backends tensorflow and jax; set KERAS_BACKEND to one of them" in refusal_of(capsys, "train")
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"  # for a module of one's own that imports TensorFlow


def test_the_traceback_of_what_is_no_refusal_is_kept(monkeypatch):
    """A ValueError out of somebody else's code is a bug to be seen, not a refusal."""
    monkeypatch.setattr(cli.plot, "run", lambda arguments: json.loads("{"))
    with pytest.raises(json.JSONDecodeError):
        cli.main(["plot", "somewhere"])


@pytest.mark.slow
def test_train_says_where_the_result_is_and_what_to_type_next(trained):
    run, done = trained
    assert "The run is in 'a run'. Next:" in done.stdout
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [command[1:] for command in commands] == [
        ["evaluate", "a run"],
        ["plot", "a run", "--output", "curve.png"],
        ["report", "a run"],
    ]
    last = done.stdout.splitlines()[-1]
    assert last.startswith("This run and those beside it: ")
    viewer, *arguments = shlex.split(last.partition(": ")[2])
    assert arguments[:2] == ["--logdir", "a run"], "the folder above has anything in it"
    assert Path(viewer).name == "tensorboard"
    found = shutil.which(run.parent / viewer) or shutil.which(viewer)
    assert found or importlib.util.find_spec("tensorboard") is None
    assert all(Path(command[0]).name == "actor-learner" for command in commands)
    assert read_config(run)["algorithm"]["gamma"] == 0.97
    assert read_metrics(run)[-1]["env_steps"] >= 1500


@pytest.mark.slow
def test_train_prints_what_the_preset_set_and_progress_without_noise_of_tensorflow(trained):
    line = trained[1].stdout.splitlines()[0]
    assert line.startswith("Preset for CartPole-v1 (flags override it, --preset none disables it): ")
    assert "--gae-lambda 0.8 " in line
    assert "--gamma " not in line
    lines = trained[1].stderr.splitlines()
    progress = [line for line in lines if "device_compiler.h" not in line]  # TensorFlow 2.20 insists on it
    assert all(re.match(r" *\d+%  [\d,]+ steps  ", line) for line in progress)
    assert progress[-1].startswith("100%")
    assert "steps/s" in progress[-1]


def test_the_printed_preset_has_the_environments_arguments_that_still_count(capsys):
    for flags, expected in (([], True), (['{"noop_max": 1}'], True), (['{"episodic_life": false}'], False)):
        arguments = cli.parse(["train", "ALE/Breakout-v5", *(["--env-kwargs", *flags] if flags else [])])
        cli.train._print_preset(arguments, train_config(arguments))
        assert ("--env-kwargs" in capsys.readouterr().out) is expected


@pytest.mark.slow
def test_the_printed_commands_work(trained):
    for package in ("matplotlib", "jinja2"):
        pytest.importorskip(package, reason=f"needs {package}")
    run, done = trained
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in done.stdout.splitlines():
        if line.startswith("  "):
            subprocess.run(line, shell=True, cwd=run.parent, env=environment, check=True, capture_output=True)
    assert (run.parent / "curve.png").stat().st_size > 0
    page = (run / "report.html").read_text()
    assert "CartPole-v1, PPO" in page
    assert "finished" in page
    assert "episode_return over env steps" in page
    assert "Limited by: " in page


@pytest.mark.slow
def test_evaluate_as_json(trained, capsys):
    run, _ = trained
    assert cli.main(["evaluate", str(run), "--episodes", "3", "--seed", "5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["return_mean"] == pytest.approx(np.mean(result["returns"]))
    assert result["return_std"] == pytest.approx(np.std(result["returns"]))
    low, high = result["return_interval"]
    assert low <= result["return_mean"] <= high
    assert (result["episodes"], result["seed"], result["deterministic"]) == (3, 5, True)
    assert result["returns"] == result["lengths"]  # CartPole pays 1 a step
    assert al.evaluate(run, episodes=3, seed=5).mean == result["return_mean"]
    assert cli.main(["evaluate", str(run), "--episodes", "3", "--seed", "5", "--json", "--stochastic"]) == 0
    sampled = json.loads(capsys.readouterr().out)
    assert not sampled["deterministic"]
    assert sampled["returns"] == al.evaluate(run, episodes=3, seed=5, deterministic=False).returns.tolist()
    assert sampled["returns"] != result["returns"]


@pytest.mark.slow
def test_evaluate_as_a_table(trained, capsys):
    run, _ = trained
    kwargs = ["--env-kwargs", '{"max_episode_steps": 5}']
    assert cli.main(["evaluate", str(run), "--episodes", "3", "--table", "--max-episode-steps", "5"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "episode  return  steps",
        "      1     5.0      5",
        "      2     5.0      5",
        "      3     5.0      5",
        "return 5.0 +- 0.0 (std) over 3 episodes of 5.0 steps",
    ]
    assert cli.main(["evaluate", str(run), "--episodes", "1", "--stochastic", *kwargs]) == 0
    assert capsys.readouterr().out == "return 5.0 +- 0.0 (std) over 1 episode of 5.0 steps\n"


@pytest.mark.slow
def test_evaluate_writes_a_video_of_each_episode(trained, tmp_path, capsys):
    for package in ("moviepy", "pygame"):
        pytest.importorskip(package, reason=f"needs {package}")
    run, _ = trained
    command = ["evaluate", str(run), "--episodes", "2", "--video", "videos", "--env-kwargs", '{"max_episode_steps": 9}']
    assert cli.main(command) == 0
    captured = capsys.readouterr()
    assert "over 2 episodes of 9.0 steps" in captured.out
    assert captured.err == ""
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 2
    assert all(video.stat().st_size > 1000 for video in (tmp_path / "videos").glob("*.mp4"))
    assert cli.main(command) == 2
    assert "must be a folder without earlier videos. Received: --video videos" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluate_elsewhere_is_refused(trained, capsys):
    run, _ = trained
    assert "Received: --env Acrobot-v1" in refusal_of(capsys, "evaluate", str(run), "--env", "Acrobot-v1")
    assert "exclude each other" in refusal_of(capsys, "evaluate", str(run), "--render", "human", "--video", "v")
    assert "`--episodes` must be an integer" in refusal_of(capsys, "evaluate", str(run), "--episodes", "0")


def test_entries_of_the_infos_have_intervals():
    evaluation = Evaluation(np.arange(4.0), np.ones(4, np.int64), {"won": np.array([1, 0, 1, 1.0]), "odd": np.ones(1)})
    assert as_text(evaluation, table=False).splitlines()[2:] == ["won: 0.75, 0.25 to 1.0 (95% confidence)", "odd: 1.0"]


def test_help_is_legible_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for argv in ([], *([name] for name in cli.COMMANDS)):
        assert max(map(len, help_of(capsys, *argv).splitlines())) <= 80


COMPLETE = """
source ./script
function=$(complete -p actor-learner | sed 's/.*-F \\([^ ]*\\).*/\\1/')
for line; do
    COMP_WORDS=(actor-learner $line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); $function; echo "${COMPREPLY[*]}"
done
"""
COMPLETED = {
    "tra": "train",
    "train --clip-range": "--clip-range --clip-range-vf",
    "train --rho": "--rho-clip",
    "train --algorithm im": "impala",
    "train HalfC": "HalfCheetah-v5",
    "train --device c": "cpu",
    "evaluate fol": "folder",
    "train --config scr": "script",
}


@pytest.mark.slow
def test_a_shell_completes(capsys, tmp_path):
    pytest.importorskip("shtab", reason="needs shtab")
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "folder").mkdir()
    done = subprocess.run(["bash", "-c", COMPLETE, "bash", *COMPLETED], capture_output=True, text=True, check=True)
    assert dict(zip(COMPLETED, map(str.strip, done.stdout.splitlines()), strict=True)) == COMPLETED


def test_completion_names_the_extra_that_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert install_command("actor-learner[completion]") in refusal_of(capsys, "completion", "bash")
    assert "shell must be one of bash, zsh, fish, tcsh (did you mean 'zsh'?). Received: ksh" in refusal_of(
        capsys, "completion", "ksh"
    )
