"""The repository as a whole: what imports what, what is public, what the wheel holds, what the scripts say."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import cloudpickle
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import actor_learner as al
from tests.support.run_files import append_metrics, create_run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "actor_learner"

# From the ground up: a folder or file imports only from floors below its own.
FLOORS = """
system
algorithms spaces
config environments networks replay
learner policy
actors
runs
build evaluate export reports
benchmark callbacks
train
__init__ cli
__main__
"""

PUBLIC = [
    "A2C",
    "ActionDistribution",
    "ActorError",
    "ActorPool",
    "AttentionMemory",
    "DQN",
    "Evaluation",
    "Impala",
    "Learner",
    "LogStd",
    "Memory",
    "Minibatches",
    "ObservationNormalization",
    "PPO",
    "Policy",
    "Recurrent",
    "ReplayBuffer",
    "Result",
    "SAC",
    "TD3",
    "TrainConfig",
    "Trajectory",
    "__version__",
    "algorithms",
    "callbacks",
    "default_critic",
    "default_network",
    "evaluate",
    "export",
    "load_config",
    "load_network",
    "load_policy",
    "load_trajectory",
    "parameter_size",
    "preset",
    "train",
]

WITHOUT_TENSORFLOW = "assert not {'tensorflow', 'keras'} & set(sys.modules), 'TensorFlow was loaded'"


def python(program, *, cwd, check=True, **environment):
    """Runs a program in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=check,
    )


def module_of(file):
    """The dotted name inside the package: "learner.update"; "learner" for its `__init__`."""
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def source_files():
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def imported_modules(file):
    """The modules of this package that a file imports, anywhere in it, for types too."""
    modules = {module_of(each) for each in source_files()}
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [(node.module, f"{node.module}.{alias.name}") for alias in node.names]
        else:
            continue
        for module, name in names:
            module, name = (
                each.removeprefix("actor_learner").removeprefix(".") or "__init__" for each in (module, name)
            )
            found |= {name if name in modules else module} & modules
    return found - {module_of(file)}


def floor_of(module):
    room = module.partition(".")[0]
    return next(floor for floor, rooms in enumerate(FLOORS.split("\n")) if room in rooms.split())


@pytest.mark.parametrize("file", source_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_import_runs_upward(file):
    module = module_of(file)
    room = module.partition(".")[0]
    others = [name for name in imported_modules(file) if name.partition(".")[0] != room]
    upward = [name for name in others if floor_of(name) >= floor_of(module) > 0]
    assert not upward, f"{module} imports from its own floor or above it: {upward}"


def test_no_files_import_each_other_in_a_circle():
    imports = {module_of(file): imported_modules(file) for file in source_files()}
    while imports:  # take away what imports nothing that is left
        ground = {module for module, names in imports.items() if not names & imports.keys()}
        assert ground, f"these files import each other: {sorted(imports)}"
        imports = {module: names for module, names in imports.items() if module not in ground}


def test_no_relative_imports_hide_from_that_test():
    for file in source_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file.name}:{node.lineno}"


def test_nothing_but_the_namespace_table_imports_the_shipped_environments():
    for file in source_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                assert not any((name or "").startswith(("actor_learner_envs", "envs")) for name in names), file


def test_the_public_names_are_these():
    assert sorted(al.__all__) == sorted(PUBLIC)
    assert dir(al) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name):
    assert getattr(al, name) is not None
    if name not in ("__version__", "algorithms", "callbacks"):
        assert getattr(al, name).__doc__


def test_the_package_is_pickled_by_its_name():
    assert cloudpickle.loads(cloudpickle.dumps(al)) is al


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = al.Trainer


@pytest.mark.slow
@pytest.mark.parametrize("first", ["al.Result", "actor_learner.train", "actor_learner.evaluate", "al.evaluate"])
def test_functions_win_over_the_modules_they_live_in(first, tmp_path):
    """`al.train` is the function, whatever was imported before."""
    before = f"import {first}" if first.startswith("actor_learner") else first
    program = f"import actor_learner as al\n{before}\nassert al.train.__call__ and al.evaluate.__call__\n"
    program += "from actor_learner.train import Result, train\nassert train is al.train and Result is al.Result"
    python(program, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "import actor_learner; import actor_learner.actors.actor",
        "import actor_learner.evaluate; from actor_learner.actors import pool; from actor_learner.policy import policy",
        "import actor_learner as al; al.preset('CartPole-v1'), al.TrainConfig, al.Policy, al.load_policy",
        "import actor_learner as al; al.ActorPool, al.Trajectory, al.evaluate, al.parameter_size",
    ],
)
def test_what_an_actor_imports_leaves_tensorflow_unloaded(program, tmp_path):
    python(f"import sys; {program}; {WITHOUT_TENSORFLOW}", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["train", "--help"],
        ["evaluate", "--help"],
        ["train", "--num-actors", "-1"],
        ["train", "CartPol-v1"],
        ["train", "--learning-rate", "-1"],
        ["train", "--run-dir", "run"],
        ["train", "--init-from", "nowhere"],
        ["train", "--resume", "nowhere"],
        ["train", "--config", "run/config.json", "--print-config"],
        ["tune", "--budget", "0"],
        ["benchmark", "--preset", "none", "--num-actors", "1", "1_000_000"],
        ["tune", "--output", "run"],
        ["doctor", "--no-self-test"],
        ["completion", "bash"],
        ["train", "--resume", "run", "--gamma", "0.5"],
        ["watch", "run"],
        ["plot", "run"],
        ["report", "run"],
        ["plot", "nowhere"],
        ["evaluate", "nowhere"],
        ["export", "--help"],
        ["export", "run"],
        ["export", "run", "--format", "keras"],
    ],
)
def test_help_plot_and_refusals_leave_tensorflow_unloaded(argv, tmp_path):
    run = create_run(al.TrainConfig(run_dir=tmp_path / "run"))
    append_metrics(run, {"env_steps": 1, "time_seconds": 1.0, "episode_return": 1.0})
    program = f"import sys\nfrom actor_learner.cli import main\ntry:\n    main({argv})\nexcept SystemExit: pass\n"
    python(program + WITHOUT_TENSORFLOW, cwd=tmp_path)


@pytest.mark.slow
def test_importing_the_package_imports_almost_nothing(tmp_path):
    program = "import sys, actor_learner; assert not {'numpy', 'gymnasium', 'argparse'} & set(sys.modules)"
    python(program, cwd=tmp_path)


def test_exported_policies_act_on_a_python_that_cannot_train_yet():
    """pip looks at `requires-python` even with `--no-deps`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed, without_tensorflow = SpecifierSet(project["requires-python"]), {"python_version": "3.14"}
    assert [minor for minor in range(9, 17) if f"3.{minor}" in allowed] == [11, 12, 13, 14]
    wanted = [Requirement(text) for text in project["dependencies"]]
    installed = {each.name for each in wanted if each.marker is None or each.marker.evaluate(without_tensorflow)}
    assert {"ai-edge-litert", "numpy"} <= installed
    assert not {"tensorflow", "keras"} & installed


def test_lower_bounds_have_an_upper_one_where_internals_are_used():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {requirement.split(">=")[0]: requirement for requirement in project["dependencies"]}
    of_numbers = {"tensorflow", "keras", "ai-edge-litert", "numpy", "protobuf"}
    assert set(bounds) == of_numbers | {"gymnasium", "cloudpickle", "rich"}
    assert all(">=" in requirement for requirement in bounds.values())
    for name in ("tensorflow", "keras", "ai-edge-litert"):
        assert "<" in bounds[name]


def test_the_listed_packages_are_those_that_are_there():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for file in PACKAGE.rglob("__init__.py")}
    expected = {".".join(folder.parts) for folder in folders} | {"actor_learner_envs"}
    assert set(settings["packages"]) == expected


@pytest.fixture(scope="module")
def clean_export(tmp_path_factory):
    """The files that git knows or would add, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("clean export")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def installed_wheel(clean_export, tmp_path_factory):
    """The wheel of a clean export, and a folder where it is unpacked as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, clean_export]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, capture_output=True, check=True)
    return wheel, site


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(installed_wheel):
    wheel, _ = installed_wheel
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "actor_learner",
        "actor_learner_envs",
    }
    assert "actor_learner/py.typed" in names
    modules = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.py")}
    assert {name for name in names if name.startswith("actor_learner/") and name.endswith(".py")} == modules
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_trains_outside_the_repository(installed_wheel, tmp_path):
    _, site = installed_wheel
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import actor_learner; assert actor_learner.__file__.startswith(sys.argv[1]), actor_learner.__file__\n"
        "from actor_learner.cli import main\n"
        "main(['train', '--total-steps', '600', '--num-actors', '1', '--quiet', '--run-dir', 'run'])\n"
    )
    command = [sys.executable, "-P", "-c", program, str(site)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "network.keras").exists()
    assert (tmp_path / "run" / "policy").is_dir()


def script(folder, name, *arguments, **environment):
    """Runs a script from another directory, without this test's own Python on the PATH."""
    return subprocess.run(
        [folder / "scripts" / name, *arguments],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
    )


def fake_python(folder, version):
    """An interpreter that says it is of another version."""
    file = folder / f"python{version}"
    file.write_text(f"#!/bin/sh\necho {version}\n")
    file.chmod(0o755)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "test"])
@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_a_wrong_python_is_one_line_that_names_one_that_works(clean_export, name, version, tmp_path):
    done = script(clean_export, name, PYTHON=str(fake_python(tmp_path, version)))
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"scripts/{name}: needs Python 3.11, 3.12 or 3.13")
    assert f"is {version}" in line
    assert "Install Python 3.13" in line
    assert not (clean_export / ".venv").exists()


@pytest.mark.slow
def test_a_folder_called_venv_that_is_none_is_left_alone(clean_export):
    (clean_export / ".venv").mkdir()
    try:
        (clean_export / ".venv" / "precious").touch()
        done = script(clean_export, "train")
        assert done.returncode != 0
        assert "remove it" in done.stderr
        assert (clean_export / ".venv" / "precious").exists()
    finally:
        shutil.rmtree(clean_export / ".venv")


@pytest.mark.slow
def test_no_network_is_one_line_and_an_interrupted_set_up_begins_anew(clean_export, tmp_path):
    """Nothing listens on the port that stands in for the package index."""
    offline = {
        "PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }
    leftover = clean_export / ".venv" / "half-written"
    try:
        first = script(clean_export, "train", **offline)
        assert (clean_export / ".venv" / ".incomplete").exists()
        leftover.touch()
        second = script(clean_export, "train", **offline)
    finally:
        shutil.rmtree(clean_export / ".venv", ignore_errors=True)
    for done in (first, second):
        assert done.returncode != 0
        making, installing, failure = done.stderr.splitlines()
        assert "making" in making
        assert "installing" in installing
        assert failure.startswith("scripts/train: no network: pip can't reach the package index.")
    assert not leftover.exists()


@pytest.fixture
def finished_set_up(clean_export):
    """A .venv that says it is set up, whose programs print how they were called."""
    folder = clean_export / ".venv"
    venv.create(folder)
    for name in ("actor-learner", "ruff", "mypy", "pytest"):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\necho in "$PWD"\n')
        program.chmod(0o755)
    checksum = subprocess.run(
        "cksum < pyproject.toml", shell=True, cwd=clean_export, capture_output=True, text=True, check=True
    )
    for kind in ("run", "dev"):
        (folder / f".ready-{kind}").write_text(f"{checksum.stdout}{clean_export}\n")
    yield clean_export
    shutil.rmtree(folder)


@pytest.mark.slow
def test_scripts_work_from_anywhere_and_through_a_link(finished_set_up, tmp_path):
    done = script(finished_set_up, "train", "Acrobot-v1", "--env-kwargs", '{"a": 1}')
    assert done.stdout.splitlines() == ['actor-learner train Acrobot-v1 --env-kwargs {"a": 1}', "in /"]
    (tmp_path / "link").symlink_to(finished_set_up / "scripts" / "train")
    linked = subprocess.run([tmp_path / "link"], capture_output=True, text=True, check=True)
    assert linked.stdout.startswith("actor-learner train\n")


@pytest.mark.slow
def test_ci_runs_the_same_check_that_people_run(finished_set_up):
    expected = [
        "ruff check .",
        "ruff format --check .",
        "pytest --numprocesses 3 --dist worksteal -k x",
        "mypy --strict actor_learner",  # runs beside the tests, and is heard after them
    ]
    for done in (
        script(finished_set_up, "test", "-k", "x"),
        script(finished_set_up, "../.ci/run", "-k", "x"),
    ):
        assert [line for line in done.stdout.splitlines() if not line.startswith("in ")] == expected
        assert done.stdout.splitlines()[-1] == f"in {finished_set_up}"


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "tests_run"), [("ruff", False), ("mypy", True), ("pytest", True)])
def test_each_part_that_fails_fails_the_check(finished_set_up, tool, tests_run):
    program = finished_set_up / ".venv" / "bin" / tool
    before = program.read_text()
    program.write_text(f"#!/bin/sh\necho {tool} fails\nexit 3\n")
    try:
        done = script(finished_set_up, "test")
    finally:
        program.write_text(before)
    assert done.returncode == 3
    assert f"{tool} fails" in done.stdout
    assert ("pytest" in done.stdout) == tests_run


@pytest.mark.slow
def test_a_changed_pyproject_asks_for_a_new_installation(finished_set_up):
    pyproject = finished_set_up / "pyproject.toml"
    before = pyproject.read_text()
    try:
        pyproject.write_text(before + "\n")
        done = script(finished_set_up, "train", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    finally:
        pyproject.write_text(before)
    assert "actor-learner train" not in done.stdout
    assert "scripts/train: " in done.stderr


def packages_of(extras, optional):
    """The names of the packages that extras install, those of the extras that they name included."""
    for requirement in map(Requirement, (text for extra in extras for text in optional[extra])):
        own = requirement.name == "actor-learner"
        yield from packages_of(requirement.extras, optional) if own else [requirement.name]


@pytest.mark.slow
def test_train_sets_up_what_shows_the_files_that_a_run_writes(finished_set_up):
    """TensorBoard's files among them; `keras.callbacks.TensorBoard` needs the package, too."""
    python, calls = (finished_set_up / ".venv" / name for name in ("bin/python", "calls"))
    python.unlink()
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 3.13\necho "$@" >>{str(calls)!r}\n')
    python.chmod(0o755)
    (finished_set_up / ".venv" / ".ready-run").unlink()
    assert "set-up done" in script(finished_set_up, "train").stderr
    (extras,) = re.findall(r"--editable \.\[(.+)\]", calls.read_text())
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {"tensorboard", "matplotlib", "jinja2", "moviepy"} <= set(packages_of(extras.split(","), optional))
