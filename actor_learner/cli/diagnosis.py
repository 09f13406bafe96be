"""A diagnosis of an installation and its machine, for a bug report.

It names no folders, users or hosts. The self-test trains for two seconds in a process of its own, which is killed if it
takes too long; this process leaves Keras unloaded.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from actor_learner.config.pool_checks import check_address
from actor_learner.runs.provenance import PACKAGES
from actor_learner.system import __version__, machine
from actor_learner.system.child import Child, ChildEndedError
from actor_learner.system.files import one_line
from actor_learner.system.keras_import import BACKENDS, keras_backend

SECONDS = 2.0  # of training in the self-test, after compilation
DEADLINE = 180.0  # seconds for the whole self-test; on a busy machine, importing TensorFlow takes ten
_OPTIONAL = "cloudpickle ray rich matplotlib moviepy mujoco ale-py box2d-py box2d envpool wandb".split()
_MIN_DESCRIPTORS = 256
_MIN_PROCESSES = 64
_MIN_MEMORY_BYTES = 1e9
_SHM = "/dev/shm"  # noqa: S108 - only its size is read
_VARIABLES = re.compile(
    "KERAS_BACKEND|CUDA_VISIBLE_DEVICES|(TF_)?XLA_FLAGS|MUJOCO_GL|SDL_VIDEODRIVER|LD_PRELOAD|"
    "TF_(NUM|CPP|ENABLE|GPU|FORCE|DETERMINISTIC|USE)_.*|(OMP|MKL|OPENBLAS|KMP)_.*"
)


@dataclass(frozen=True)
class Diagnosis:
    """The result of `examine`."""

    sections: Mapping[str, Mapping[str, Any]]  # name of a section -> name of an entry -> its value
    problems: tuple[str, ...]  # a line for each problem, with what to do

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.problems, "problems": list(self.problems), **self.sections}

    def as_markdown(self) -> str:
        """Return a table for a bug report, readable as plain text, too."""
        rows = [("", "")]
        for section, entries in filter(lambda item: item[1], self.sections.items()):
            rows += [(f"**{section}**", ""), *((name, _text(value)) for name, value in entries.items())]
        name_width, value_width = (min(48, max(map(len, column))) for column in zip(*rows, strict=True))
        table = [f"| {name:<{name_width}} | {value:<{value_width}} |" for name, value in rows]
        table.insert(1, f"|-{'-' * name_width}-|-{'-' * value_width}-|")
        verdict = [f"- {problem}" for problem in self.problems] or ["No problem found."]
        return "\n".join(["### actor-learner doctor", "", *verdict, "", *table])


def examine(*, self_test: bool = True, ray_address: str | None = None, env: str = "CartPole-v1") -> Diagnosis:
    """Collect versions, machine and limits, and look for problems.

    self_test: train for two seconds, and list the GPUs that Keras's backend sees. ray_address: a cluster, on each of
    whose machines an actor plays `env`.
    """
    environment = {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)}
    sections: dict[str, Mapping[str, Any]] = {"versions": _versions(), "machine": _machine()}
    sections |= {"shared memory": _shared_memory(), "limits": _limits(), "environment": environment}
    problems = [*_requirements(), *_shortages(sections)]
    try:
        keras_backend()
    except ValueError as error:
        problems.append(str(error))
    if self_test:
        outcome = try_it()
        sections["self-test"] = outcome
        if "failed" in outcome:
            problems.append(f"The self-test failed: {outcome['failed']}")
    if ray_address is not None:
        sections["cluster"], failure = _examine_cluster(ray_address, env)
        problems += failure
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
    here, available = machine.machine(), machine.system_available()
    return {
        "system": here["system"],
        "cpu": here["cpu"],
        "cores of the machine": os.cpu_count(),
        "cores allowed": machine.allowed_cores(),
        "cores by cgroup quota": _finite(machine.cpu_quota()),
        "cores used": machine.available_cores(),
        "memory, GB": here["memory_gb"],
        "memory available, GB": _gigabytes(math.inf if available is None else available),
        "memory by cgroup limit, GB": _gigabytes(machine.cgroup_limit()),
    }


def _shared_memory() -> dict[str, Any]:
    found: dict[str, Any] = {"memfd_create": hasattr(os, "memfd_create"), "pidfd_open": _has_pidfd()}
    try:
        disk = os.statvfs(_SHM)
    except OSError:
        return {**found, _SHM: "missing"}
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
        limits = resource.getrlimit(getattr(resource, name))
        return [None if limit == resource.RLIM_INFINITY else limit for limit in limits]

    names = {"open files": "RLIMIT_NOFILE", "processes": "RLIMIT_NPROC", "address space": "RLIMIT_AS"}
    return {f"{what} (soft, hard)": soft_and_hard(name) for what, name in names.items() if hasattr(resource, name)}


def _requirements() -> Iterator[str]:
    """Yield the required packages that are missing or have the wrong version."""
    try:
        from packaging.requirements import Requirement  # comes with keras

        required = importlib.metadata.requires("actor-learner") or []
    except ImportError:  # no keras; or this package, run from its folder, isn't installed
        return
    others = set(BACKENDS) - {_backend()}
    for requirement in map(Requirement, required):
        if requirement.name in others or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            needed = f"{requirement.name}{requirement.specifier}"
            yield f"{needed} is needed: pip install '{needed}'. Received: {requirement.name}={version or 'none'}"


def _backend() -> str | None:
    with contextlib.suppress(ValueError):
        return keras_backend()
    return None


def _shortages(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the limits and the memory that are too small for even a small run."""
    limits, here = sections["limits"], sections["machine"]
    for what, least, flag in (("open files", _MIN_DESCRIPTORS, "-n"), ("processes", _MIN_PROCESSES, "-u")):
        soft = limits.get(f"{what} (soft, hard)", [None])[0]
        if soft is not None and soft < least:
            yield f"The limit of {what} is low; raise it: ulimit {flag} {4 * least}. Received: {soft}"
    left = [here[name] for name in ("memory available, GB", "memory by cgroup limit, GB") if here[name] is not None]
    if left and min(left) < _MIN_MEMORY_BYTES / 1e9:
        yield f"Little memory is left, and a run takes at least 1 GB; end other programs. Received: {min(left)} GB"


def _examine_cluster(address: str, env: str) -> tuple[dict[str, Any], list[str]]:
    """Return the section of a cluster, and what is wrong with it."""
    try:
        check_address("--ray", address)
        from actor_learner.cli.cluster_diagnosis import examine_cluster

        return examine_cluster(address, env), []
    except (ValueError, RuntimeError, TimeoutError, MemoryError) as error:
        return {}, [f"The cluster: {one_line(error)}"]


def try_it(deadline: float = DEADLINE) -> dict[str, Any]:
    """Train for two seconds in a process of its own, and return the results, or one line on the failure as "failed".

    deadline: seconds after which the process is killed, and the processes that it started end.
    """
    try:
        child = Child(f"{__name__}:_answer", name="self-test")
    except OSError as error:
        return {"failed": f"no process could be started ({error.strerror})"}
    try:
        return dict(child.receive(deadline))
    except TimeoutError:
        return {"failed": f"it did not finish in {deadline:.0f} seconds; is the machine busy?"}
    except ChildEndedError as error:
        return {"failed": str(error)}
    finally:
        child.close()


def _answer(descriptor: str) -> None:
    Connection(int(descriptor)).send(_self_test())


def _self_test() -> dict[str, Any]:
    """Train with a pool of two actors and a learner, and return times and rates."""
    from actor_learner.actors.pool import ActorPool
    from actor_learner.algorithms.ppo import PPO
    from actor_learner.system.keras_import import import_keras

    start = time.perf_counter()
    import_keras()
    from actor_learner.learner import backend
    from actor_learner.learner.learner import Learner

    found: dict[str, Any] = {f"seconds to import {backend.NAME}": round(time.perf_counter() - start, 1)}
    found[f"GPUs that {backend.NAME} sees"] = backend.gpu_names()
    start = time.perf_counter()
    with ActorPool("CartPole-v1", num_actors=2, envs_per_actor=4, unroll_length=32) as actors:
        learner = Learner(actors.network, PPO(minibatch_size=64, epochs=2), action_space=actors.action_space)
        _update(actors, learner)
        found["seconds to the first update"] = round(time.perf_counter() - start, 1)
        steps_before, start, seconds = learner.env_steps, time.perf_counter(), 0.0
        while seconds < SECONDS:
            _update(actors, learner)
            seconds = time.perf_counter() - start
        found["updates"] = learner.updates
        found["env steps per second"] = round((learner.env_steps - steps_before) / seconds)
    return found


def _update(actors: Any, learner: Any) -> None:
    metrics = learner.update(actors.collect(timeout=60))
    if not math.isfinite(metrics["loss"]):
        raise RuntimeError(f"An update gave a loss that isn't finite. Received: loss={metrics['loss']}")
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
