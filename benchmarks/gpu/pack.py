"""An archive that brings the measurement of an accelerator to a machine with Python and JAX, but without network.

    scripts/measure gpu-pack --output gpu-pack.tar.xz --present protobuf tqdm       # packages, source and exports
    python3 -m tarfile -e gpu-pack.tar.xz && bash gpu-pack/run.sh --output gpu.json     # there; arguments of `gpu`
    bash gpu-pack/run.sh device --num-actors 8 --output gpu-device.json         # there, arguments of `device`

The machine has Linux on x86-64, Python of that version with NumPy, JAX with its GPU, h5py, rich, ml-dtypes, absl-py,
packaging and cloudpickle. It needs no TensorFlow: the graphs that actors act with are made here. It needs no pip
either: the packages are in the archive as they are installed. `--simulators` adds Craftax, Brax and MuJoCo Playground
(without MuJoCo Warp, which is larger than the archive may be), if they are installed here. They need Flax, Optax, Orbax
and lxml there. `--precision` and `--envs-per-actor` are of the pipeline: give both programs the same.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu.gpu import child_rows
from benchmarks.gpu.works import ACTORS, PIPELINES, add_pipeline_flags
from benchmarks.harness import ROOT, RunFailedError, make_parser, tell
from benchmarks.speed.speed import PACKAGES

WHEELS = """
keras optree namex typing-extensions gymnasium farama-notifications
ai-edge-litert backports-strenum protobuf flatbuffers tqdm ale-py mujoco mujoco-core glfw imageio
""".split()
"""The packages that the machine may lack, with what they import of their own dependencies."""

SIMULATORS = "craftax brax mujoco-mjx jaxopt ml-collections trimesh etils playground mediapy".split()
"""The same for the simulators of `scripts/measure device`."""

UNUSED = ("ai_edge_litert/libLiteRtWebGpuAccelerator.so", "ai_edge_litert/vendors", "ai_edge_litert/tools", "bin")
"""What actors don't import: a quarter of the archive."""

PLATFORMS = ["any", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64"]
MAX_BYTES = 64_000_000
PIP_SECONDS, EXPORT_SECONDS = 600.0, 300.0  # of all packages; of an export

RUN = Path(__file__).with_name("run_pack.sh")


def main(words: Sequence[str] | None = None) -> None:
    parser = make_parser("gpu-pack", __doc__ or "", "archive to write", works=list(PIPELINES), actors=ACTORS)
    parser.add_argument("--python", default="3.12", metavar="X.Y", help="its Python (default: 3.12)")
    help_of_present = "packages that its Python has, which are left out; lines of `pip freeze` will do"
    parser.add_argument("--present", nargs="+", default=[], metavar="NAME", help=help_of_present)
    help_of_simulators = "the works of `device` that need one, and the packages that these need"
    parser.add_argument("--simulators", action="store_true", help=help_of_simulators)
    add_pipeline_flags(parser)
    arguments = parser.parse_args(words)
    names = WHEELS + SIMULATORS if arguments.simulators else WHEELS
    output = arguments.output or Path("gpu-pack.tar.xz")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "source", arguments.python, missing(names, arguments.present))
        copy_source(folder / "source")
        export(folder / "cache", arguments)
        shutil.copyfile(RUN, folder / "run.sh")
        with tarfile.open(output, "w:xz", preset=9) as archive:
            archive.add(folder, "gpu-pack")
    if (size := output.stat().st_size) > MAX_BYTES:
        raise RunFailedError(f"{output} has {size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g}")
    print(f"{output}: {size / 1e6:.1f} MB")


def missing(names: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return the names of packages that aren't present, in any spelling and with or without a version."""
    there = {canonicalize_name(Requirement(text).name) for text in present}
    return [name for name in names if canonicalize_name(name) not in there]


def install(folder: Path, python: str, names: Iterable[str]) -> None:
    """Install packages for the machine, of the versions that are installed here. Raises RunFailedError."""
    wanted = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    tags = ["--implementation", "cp", "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
    tags += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder]
    command += ["--only-binary=:all:", "--python-version", python, *tags, *wanted]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    if done.returncode:
        raise RunFailedError(f"pip install failed: {done.stderr.strip().splitlines()[-1]}")
    for path in map(folder.joinpath, UNUSED):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def copy_source(folder: Path) -> None:
    """Copy the packages and the measuring programs, without results."""
    sources = {**PACKAGES, "benchmarks": "benchmarks"}
    for package, source in sources.items():
        for file in (ROOT / source).rglob("*"):
            if file.suffix in (".py", ".jinja", ".toml", ".typed"):
                target = folder / package / file.relative_to(ROOT / source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def export(cache: Path, arguments: argparse.Namespace) -> None:
    """Fill a cache with the graphs of all networks, which TensorFlow makes. Raises RunFailedError."""
    environment = {"KERAS_BACKEND": "tensorflow", "ACTOR_LEARNER_CACHE": str(cache.absolute())}
    request = {name: getattr(arguments, name) for name in ("works", "precision", "envs_per_actor")}
    request["num_actors"] = arguments.actors
    for row in child_rows("exports", request, environment, EXPORT_SECONDS):
        tell(f"exported: {row['exported']}")
