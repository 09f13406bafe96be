"""What there is to know of an installation and its machine, and whether it works: for a bug report.

Says nothing of folders, users or hosts. The self-test trains for two seconds in a process of its own, which is ended
where it takes too long; this process leaves TensorFlow unloaded.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actor_learner.config.config import check_backend
from actor_learner.runs.provenance import PACKAGES
from actor_learner.system.machine import available_cores, cgroup_limit, cpu_quota, machine, read_lines
from actor_learner.system.version import __version__

SECONDS = 2.0
"""What the self-test trains for, once all is compiled."""

DEADLINE = 180.0
"""Seconds for all of it; TensorFlow takes ten to be imported on a machine that is busy."""

_OPTIONAL = (
    "cloudpickle",
    "rich",
    "matplotlib",
    "moviepy",
    "mujoco",
    "ale-py",
    "box2d-py",
    "box2d",
    "envpool",
    "wandb",
)
_LEAST_DESCRIPTORS = 256
_LEAST_PROCESSES = 64
_LEAST_MEMORY = 1e9
_SHM = "/dev/shm"  # noqa: S108 - it is looked at, and nothing is put there
_VARIABLES = re.compile(
    "KERAS_BACKEND|CUDA_VISIBLE_DEVICES|(TF_)?XLA_FLAGS|MUJOCO_GL|SDL_VIDEODRIVER|LD_PRELOAD|"
    "TF_(NUM|CPP|ENABLE|GPU|FORCE|DETERMINISTIC|USE)_.*|(OMP|MKL|OPENBLAS|KMP)_.*"
)


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        sections: name of a section -> what -> how it is here, in words or numbers.
        problems: what is wrong, and what to do, a line each.
    """

    sections: Mapping[str, Mapping[str, Any]]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As one object."""
        return {"ok": not self.problems, "problems": list(self.problems), **self.sections}

    def as_markdown(self) -> str:
        """As a table that can be pasted into a bug report, and is legible as it stands."""
        rows = [("", "")]
        for section, entries in filter(lambda item: item[1], self.sections.items()):
            rows += [(f"**{section}**", ""), *((name, _text(value)) for name, value in entries.items())]
        name_width, value_width = (min(48, max(map(len, column))) for column in zip(*rows, strict=True))
        table = [f"| {name:<{name_width}} | {value:<{value_width}} |" for name, value in rows]
        table.insert(1, f"|-{'-' * name_width}-|-{'-' * value_width}-|")
        verdict = [f"- {problem}" for problem in self.problems] or ["No problem found."]
        return "\n".join(["### actor-learner doctor", "", *verdict, "", *table])


def examine(*, self_test: bool = True) -> Diagnosis:
    """Looks at everything, and tries whether it works.

    self_test: whether to train for two seconds, which alone finds out what GPUs TensorFlow sees.
    """
    sections: dict[str, Mapping[str, Any]] = {
        "versions": _versions(),
        "machine": _machine(),
        "shared memory": _shared_memory(),
        "limits": _limits(),
        "environment": _environment(),
    }
    problems = [*_requirements(), *_shortages(sections)]
    try:
        check_backend()
    except ValueError as error:
        problems.append(str(error))
    if self_test:
        tried = try_it()
        sections["self-test"] = tried
        if "failed" in tried:
            problems.append(f"The self-test failed: {tried['failed']}")
    return Diagnosis(sections, tuple(problems))


def _versions() -> dict[str, str]:
    found = {"actor-learner": __version__, "python": platform.python_version()}
    found |= {name: _version(name) or "missing" for name in PACKAGES}
    return found | {name: version for name in _OPTIONAL if (version := _version(name))}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    here = machine()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "system": here["system"],
        "cpu": here["cpu"],
        "cores of the machine": os.cpu_count(),
        "cores allowed": affinity,
        "cores by cgroup quota": _finite(cpu_quota()),
        "cores used": available_cores(),
        "memory, GB": here["memory_gb"],
        "memory available, GB": _gigabytes(_available_memory()),
        "memory by cgroup limit, GB": _gigabytes(cgroup_limit()),
    }


def _available_memory(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Bytes that can be had without swapping; inf where the system doesn't say."""
    lines = (line.split() for line in read_lines(meminfo) if line.startswith("MemAvailable:"))
    return next((1024.0 * int(words[1]) for words in lines), math.inf)


def _shared_memory() -> dict[str, Any]:
    found: dict[str, Any] = {"memfd_create": hasattr(os, "memfd_create"), "pidfd_open": _has_pidfd()}
    try:
        disk = os.statvfs(_SHM)
    except OSError:
        return {**found, _SHM: "not there"}
    sizes = [_gigabytes(blocks * disk.f_frsize) for blocks in (disk.f_blocks, disk.f_bavail)]
    return {**found, f"{_SHM} (size, free), GB": sizes}


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _limits() -> dict[str, Any]:
    import resource

    def soft_and_hard(name: str) -> list[int | None]:
        ends = resource.getrlimit(getattr(resource, name))
        return [None if end == resource.RLIM_INFINITY else end for end in ends]

    names = {"open files": "RLIMIT_NOFILE", "processes": "RLIMIT_NPROC", "address space": "RLIMIT_AS"}
    return {f"{what} (soft, hard)": soft_and_hard(name) for what, name in names.items() if hasattr(resource, name)}


def _environment() -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)}


def _requirements() -> Iterator[str]:
    """What isn't installed in a version that this package runs with."""
    try:
        from packaging.requirements import Requirement  # comes with keras

        required = importlib.metadata.requires("actor-learner") or []
    except ImportError:  # no keras; or this package, run from its folder, isn't installed
        return
    for requirement in map(Requirement, required):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            needed = f"{requirement.name}{requirement.specifier}"
            yield f"{needed} is needed: pip install '{needed}'. Received: {requirement.name}={version or 'none'}"


def _shortages(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What there is too little of for even a small run."""
    limits, here = sections["limits"], sections["machine"]
    for what, least, flag in (("open files", _LEAST_DESCRIPTORS, "-n"), ("processes", _LEAST_PROCESSES, "-u")):
        soft = limits.get(f"{what} (soft, hard)", [None])[0]
        if soft is not None and soft < least:
            yield f"The limit of {what} is low; raise it: ulimit {flag} {4 * least}. Received: {soft}"
    left = [here[name] for name in ("memory available, GB", "memory by cgroup limit, GB") if here[name] is not None]
    if left and min(left) < _LEAST_MEMORY / 1e9:
        yield f"Little memory is left: a run takes 1 GB and more; end something else. Received: {min(left)} GB"


def try_it(deadline: float = DEADLINE) -> dict[str, Any]:
    """Trains for two seconds in a process of its own: what came of it; under "failed", in one line, why nothing did.

    deadline: seconds, after which the process is killed; what it started dies with it.
    """
    # By its environment, so that the same package is tried that runs here.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", "actor_learner.cli.diagnosis"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"nothing came of it in {deadline:.0f} seconds; is the machine busy with something else?"}
    except OSError as error:
        return {"failed": f"no process could be started ({error.strerror})"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    said = done.stderr.strip().splitlines()
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"failed": f"{said[-1] if said else 'it said nothing'} ({how})"}


def _self_test() -> dict[str, Any]:
    """What the process of its own does: a pool of two actors and a learner."""
    from actor_learner.actors.pool import ActorPool
    from actor_learner.algorithms.ppo import PPO
    from actor_learner.system.keras_import import import_keras

    begun = time.perf_counter()
    import_keras()
    import tensorflow as tf

    from actor_learner.learner.learner import Learner

    found: dict[str, Any] = {"seconds to import TensorFlow": round(time.perf_counter() - begun, 1)}
    gpus = tf.config.list_physical_devices("GPU")
    found["GPUs that TensorFlow sees"] = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus
    ]
    begun = time.perf_counter()
    with ActorPool("CartPole-v1", num_actors=2, envs_per_actor=4, unroll_length=32) as actors:
        learner = Learner(actors.network, PPO(minibatch_size=64, epochs=2), action_space=actors.action_space)
        _update(actors, learner)
        found["seconds to the first update"] = round(time.perf_counter() - begun, 1)
        before, begun, seconds = learner.env_steps, time.perf_counter(), 0.0
        while seconds < SECONDS:
            _update(actors, learner)
            seconds = time.perf_counter() - begun
        found["updates"] = learner.updates
        found["env steps per second"] = round((learner.env_steps - before) / seconds)
    return found


def _update(actors: Any, learner: Any) -> None:
    metrics = learner.update(actors.collect(timeout=60))
    if not math.isfinite(metrics["loss"]):
        raise RuntimeError(f"An update gave what isn't finite. Received: loss={metrics['loss']}")
    actors.publish(learner.get_weights())


def _gigabytes(number: float) -> float | None:
    return None if math.isinf(number) else round(number / 1e9, 1)


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number


def _text(value: Any) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, bool):
        return ("no", "yes")[value]
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    print(json.dumps(_self_test()))
