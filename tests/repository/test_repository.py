"""The repository as a whole: what imports what, what is public, what the wheel holds, what the scripts say."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import cloudpickle
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import actor_learner as al
from tests.support.processes import patience
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
arena benchmark callbacks push
train
seeds
sweep
__init__ cli
__main__
"""


def python(program, *arguments, cwd):
    """Runs a program in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def module_of(file):
    """The dotted name inside the package: "learner.update"; "learner" for its `__init__`."""
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


@functools.cache
def source_files():
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}


def running_code(tree):
    """All nodes but those under `if TYPE_CHECKING:`, which only names types and never runs."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse):
            yield node
            yield from running_code(node)


@functools.cache
def imported_modules(file):
    """The modules of this package that a file imports when it runs, anywhere in it."""
    modules = {module_of(each) for each in source_files()}
    found = set()
    for node in running_code(source_files()[file]):
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


def test_no_import_runs_upward():
    found = []
    for file in source_files():
        module = module_of(file)
        others = {name for name in imported_modules(file) if name.partition(".")[0] != module.partition(".")[0]}
        found += [f"{module} imports {name}" for name in others if floor_of(name) >= floor_of(module) > 0]
    assert not found, "from its own floor or above it"


def test_no_files_import_each_other_in_a_circle():
    imports = {module_of(file): imported_modules(file) for file in source_files()}
    while imports:  # take away what imports nothing that is left
        ground = {module for module, names in imports.items() if not names & imports.keys()}
        assert ground, f"these files import each other: {sorted(imports)}"
        imports = {module: names for module, names in imports.items() if module not in ground}


def test_imports_are_absolute_and_leave_out_the_shipped_environments():
    """Relative ones would hide from the tests above; only a table of names may lead to the environments."""
    for file, tree in source_files().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not getattr(node, "level", 0), f"{file.name}:{node.lineno}"
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                assert not any(name.startswith(("actor_learner_envs", "envs")) for name in names), file


def test_public_names_have_docstrings_and_others_are_not_there():
    assert dir(al) == sorted(al.__all__)
    undocumented = {name for name in al.__all__ if not getattr(al, name).__doc__}
    assert undocumented <= {"__version__", "algorithms", "callbacks"}
    for name in al.__all__:  # which `help` shows of a tuple's fields
        for field in getattr(getattr(al, name), "_fields", ()):
            assert f" {field}: " in getattr(al, name).__doc__, (name, field)
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = al.Trainer


def test_the_package_is_pickled_by_its_name():
    assert cloudpickle.loads(cloudpickle.dumps(al)) is al


IN_FRESH_INTERPRETERS = """
import os, sys
for program in sys.argv[1:]:
    if os.fork() == 0:
        exec(program)
        assert not {'tensorflow', 'keras'} & set(sys.modules), f"TensorFlow was loaded by: {program}"
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"failed: {program}")
"""


@pytest.mark.slow
def test_what_is_imported_and_what_names_mean_in_whatever_order(tmp_path):
    """`al.train` is the function; what actors import, and the package itself, leave TensorFlow unloaded."""
    functions = "from actor_learner.train import Result, train; assert train is al.train and Result is al.Result"
    functions = f"assert al.train.__call__ and al.evaluate.__call__; {functions}"
    programs = [
        "import actor_learner; assert not {'numpy', 'gymnasium', 'argparse'} & set(sys.modules)",
        f"import actor_learner as al; al.Result; {functions}",
        f"import actor_learner as al, actor_learner.train; {functions}",
        f"import actor_learner as al, actor_learner.evaluate; {functions}",
        "import actor_learner; import actor_learner.actors.actor",
        "import actor_learner.evaluate; from actor_learner.actors import pool; from actor_learner.policy import policy",
        "import actor_learner as al; al.preset('CartPole-v1'), al.TrainConfig, al.Policy, al.load_policy",
        "import actor_learner as al; al.ActorPool, al.Trajectory, al.evaluate, al.parameter_size",
    ]
    python(IN_FRESH_INTERPRETERS, *programs, cwd=tmp_path)


COMMANDS = """
--help
train --help
export --help
train --num-actors -1
train CartPol-v1
train --run-dir run
train --init-from nowhere
train --resume nowhere
train --config run/config.json --print-config
train --resume run --gamma 0.5
tune --budget 0
tune --output run
benchmark CartPol-v1
benchmark --preset none --num-actors 1 1_000_000
doctor --no-self-test
completion bash
watch run
plot run
report run
evaluate nowhere
export run
export run --format keras
"""
CALLING = """
import sys
from actor_learner.cli import main
for line in sys.argv[1].strip().splitlines():
    try:
        main(line.split())
    except SystemExit:
        pass
    assert not {'tensorflow', 'keras'} & set(sys.modules), f"TensorFlow was loaded by: {line}"
"""


@pytest.mark.slow
def test_help_plot_and_refusals_leave_tensorflow_unloaded(tmp_path):
    run = create_run(al.TrainConfig(run_dir=tmp_path / "run"))
    append_metrics(run, {"env_steps": 1, "time_seconds": 1.0, "episode_return": 1.0})
    python(CALLING, COMMANDS, cwd=tmp_path)


def test_exported_policies_act_on_a_python_that_cannot_train_yet():
    """pip looks at `requires-python` even with `--no-deps`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed, without_tensorflow = SpecifierSet(project["requires-python"]), {"python_version": "3.14"}
    assert [minor for minor in range(9, 17) if f"3.{minor}" in allowed] == [11, 12, 13, 14]
    wanted = [Requirement(text) for text in project["dependencies"]]
    installed = {each.name for each in wanted if each.marker is None or each.marker.evaluate(without_tensorflow)}
    assert {"ai-edge-litert", "numpy"} <= installed
    assert not {"tensorflow", "keras"} & installed


def test_bounds_and_what_train_sets_up():
    """Versions have an upper bound where internals are used; files that a run writes can be shown."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {requirement.split(">=")[0]: requirement for requirement in project["dependencies"]}
    assert all(">=" in requirement for requirement in bounds.values())
    assert all("<" in bounds[name] for name in ("tensorflow", "keras", "ai-edge-litert"))
    shown = {extra for text in project["optional-dependencies"]["run"] for extra in Requirement(text).extras}
    assert shown >= {"plots", "report", "tensorboard", "video"}


def test_requirements_for_jax_are_those_of_the_package_without_tensorflow():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["jax"]])
    expected = {f"{each.name}{each.specifier}" for each in wanted if each.name != "tensorflow"}
    lines = (ROOT / "requirements-jax.txt").read_text(encoding="utf-8").splitlines()
    assert {str(Requirement(line)) for line in lines if not line.startswith("#")} == expected


def test_the_listed_packages_are_those_that_are_there():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for file in PACKAGE.rglob("__init__.py")}
    expected = {".".join(folder.parts) for folder in folders} | {"actor_learner_envs"}
    assert set(settings["packages"]) == expected


def test_the_container_gets_the_files_that_setuptools_reads():
    copies = re.findall(r"^COPY (.+) /source\S*$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    copied = set(" ".join(copies).split())
    assert copied == {"pyproject.toml", "setup.py", "README.md", "LICENSE", "actor_learner", "envs"}
    assert set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)) == copied


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
    """The wheel of a clean export, made from its sdist, and a folder where it is unpacked as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, clean_export]
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
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        top = {name.split("/")[1] for name in tar.getnames() if "/" in name}
    assert top >= {"CHANGELOG.md", "README.md", "LICENSE", "actor_learner", "envs"}
    assert top.isdisjoint({"tests", "benchmarks", "docs"})
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"actor_learner", "actor_learner_envs"}
    assert {"actor_learner/py.typed", "actor_learner/reports/report.html.jinja"} <= set(names)
    modules = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.py")}
    assert {name for name in names if name.startswith("actor_learner/") and name.endswith(".py")} == modules
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (metadata,) = (name for name in names if name.endswith("/METADATA"))
    page = zipfile.ZipFile(wheel).read(metadata).decode()
    links = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', page)
    assert len(links) > 20
    assert all((link or picture).startswith(("https://", "#")) for link, picture in links), "an index has no such files"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("train --print-config", marks=pytest.mark.slow),
        pytest.param("train --num-actors 1 --total-steps 600 --quiet --run-dir run", marks=pytest.mark.thorough),
    ],
)
def test_the_wheel_works_outside_the_repository(words, installed_wheel, tmp_path):
    _, site = installed_wheel
    program = (
        "import sys; sys.path[0] = sys.argv[1]\n"
        "import actor_learner; assert actor_learner.__file__.startswith(sys.argv[1]), actor_learner.__file__\n"
        "from actor_learner.cli import main\n"
        "assert main(sys.argv[2:]) == 0\n"
    )
    python(program, str(site), *words.split(), cwd=tmp_path)
    if "--run-dir" in words:
        assert (tmp_path / "run" / "network.keras").exists()
        assert (tmp_path / "run" / "policy").is_dir()


OFFLINE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}


def script(folder, name, *arguments, **environment):
    """Runs a script from another directory, without this test's own Python on the PATH."""
    return subprocess.run(
        [folder / "scripts" / name, *arguments],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), [("train", "3.10"), ("test", "3.14")])
def test_a_wrong_python_is_one_line_that_names_one_that_works(clean_export, name, version, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    done = script(clean_export, name, PYTHON=str(python))
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


@pytest.mark.thorough
def test_no_network_is_one_line_and_an_interrupted_set_up_begins_anew(clean_export):
    """Nothing listens on the port that stands in for the package index."""
    venv = clean_export / ".venv"
    venv.mkdir()
    try:
        (venv / ".incomplete").touch()
        (venv / "half-written").touch()
        done = script(clean_export, "train", PYTHON=sys.executable, PIP_CONFIG_FILE=os.devnull, **OFFLINE)
        assert not (venv / "half-written").exists()
        assert (venv / ".incomplete").exists()
    finally:
        shutil.rmtree(venv)
    assert done.returncode != 0
    making, installing, failure = done.stderr.splitlines()
    assert "making" in making
    assert "installing" in installing
    assert failure.startswith("scripts/train: no network: pip can't reach the package index.")


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
def test_a_changed_pyproject_asks_for_a_new_installation(finished_set_up):
    pyproject = finished_set_up / "pyproject.toml"
    before = pyproject.read_text()
    try:
        pyproject.write_text(before + "\n")
        done = script(finished_set_up, "train", **OFFLINE)
    finally:
        pyproject.write_text(before)
    assert "actor-learner train" not in done.stdout
    assert "scripts/train: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[bf]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_github_keep_their_schemas(schema, pattern):
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema")
    files = sorted(ROOT.glob(pattern))
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120.0))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_links_to_the_repository_names_one_place():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    cited = re.search(r"^repository-code: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert {url.startswith(cited[1]) for url in urls.values()} == {True}
    notebook = (ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8")
    linked = re.findall(r"(?:github\.com|google\.com/github)/([\w-]+/[\w-]+)", notebook)
    assert len(linked) == 3
    assert set(linked) == {cited[1].removeprefix("https://github.com/")}
