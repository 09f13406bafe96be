"""`actor-learner doctor`: a diagnosis of an installation and its machine, for a bug report.

It names no folders, users or hosts. The self-test trains for two seconds in a process of its own, which is killed if it
takes too long; this process leaves Keras unloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actor_learner.config.pool_checks import check_address
from actor_learner.runs.recorded_config import PACKAGES
from actor_learner.system import __version__, machine
from actor_learner.system.files import one_line
from actor_learner.system.installation import install_command
from actor_learner.system.keras_import import BACKENDS, keras_backend
from actor_learner.system.machine import driver_version

if TYPE_CHECKING:
    from actor_learner.actors.cluster.shares import Node

HELP = "check this installation, for a bug report"
DESCRIPTION = (
    "Trains for two seconds, and prints versions, CPU, GPU, memory and limits for a bug report. With --ray, starts an "
    "actor on each machine of a cluster. The exit code is 1 if there is a problem."
)

SECONDS = 2.0  # of training in the self-test, after compilation
TIMEOUT_SECONDS = 180.0  # for the whole self-test; on a busy machine, importing TensorFlow takes ten
_OPTIONAL = "cloudpickle ray rich matplotlib moviepy mujoco ale-py box2d-py box2d envpool wandb".split()
_LIMITS = {"open files": "RLIMIT_NOFILE", "processes": "RLIMIT_NPROC", "address space": "RLIMIT_AS"}
_MIN_LIMITS = {"open files": (256, "-n"), "processes": (64, "-u")}  # for a small run, and ulimit's flag
_MIN_MEMORY_GB = 1.0
_PINNED_BYTES = 2**26  # of a small run's batches
_SHM = "/dev/shm"  # noqa: S108 - only its size is read
_VARIABLES = re.compile(
    "KERAS_BACKEND|KERAS_HOME|JAX_PLATFORMS|CUDA_VISIBLE_DEVICES|(TF_)?XLA_FLAGS|MUJOCO_GL|SDL_VIDEODRIVER|LD_PRELOAD|"
    "TF_(NUM|CPP|ENABLE|GPU|FORCE|DETERMINISTIC|USE)_.*|(OMP|MKL|OPENBLAS|KMP)_.*"
)


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-self-test", action="store_true", help="don't train: Keras isn't loaded, and GPUs aren't listed"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="examine the machines of a Ray cluster, too: auto or host:port"
    )
    parser.add_argument("--env", help="environment of the actors there (default: CartPole-v1)")


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; the exit code is 1 if there is a problem."""
    if arguments.env is not None and arguments.ray is None:
        raise ValueError(f"`--env` is of the actors on a cluster: it needs `--ray`. Received: --env {arguments.env}")
    if not arguments.no_self_test and sys.stderr.isatty():
        print("Loading Keras and training for two seconds ...", file=sys.stderr)
    env = arguments.env or "CartPole-v1"
    diagnosis = examine(self_test=not arguments.no_self_test, ray_address=arguments.ray, env=env)
    print(json.dumps(diagnosis.as_json()) if arguments.json else diagnosis.as_markdown())
    return 1 if diagnosis.problems else 0


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
        for section, entries in self.sections.items():
            if entries:
                rows += [(f"**{section}**", ""), *((name, _text(value)) for name, value in entries.items())]
        name_width, value_width = (min(48, max(map(len, column))) for column in zip(*rows, strict=True))
        table = [f"| {name:<{name_width}} | {value:<{value_width}} |" for name, value in rows]
        table.insert(1, f"|-{'-' * name_width}-|-{'-' * value_width}-|")
        verdict = [f"- {problem}" for problem in self.problems] or ["No problem found."]
        return "\n".join(["### actor-learner doctor", "", *verdict, "", *table])


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "no limit", False: "no", True: "yes"}[value]
    return str(value).replace("|", "\\|")


def examine(*, self_test: bool = True, ray_address: str | None = None, env: str = "CartPole-v1") -> Diagnosis:
    """Collect versions, machine and limits, and look for problems.

    self_test: train for two seconds, and list the GPUs that Keras's backend sees. ray_address: a cluster, on each of
    whose machines an actor plays `env`.
    """
    sections: dict[str, Mapping[str, Any]] = {
        "versions": _versions(),
        "machine": _machine(),
        "shared memory": _shared_memory(),
        "limits": {f"{what} (soft, hard)": limits for what in _LIMITS if (limits := _limits(what)) is not None},
        "environment": {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)},
    }
    problems = [*_requirements(), *_shortages(sections["machine"])]
    try:
        keras_backend()
    except ValueError as error:
        problems.append(str(error))
    if self_test:
        outcome = sections["self-test"] = try_it()
        if "failed" in outcome:
            problems.append(f"The self-test failed: {outcome['failed']}")
    if ray_address is not None:
        sections["cluster"] = {}
        try:
            check_address("--ray", ray_address)
            sections["cluster"] = examine_cluster(ray_address, env)
        except (ValueError, RuntimeError, TimeoutError, MemoryError) as error:
            problems.append(f"The cluster: {one_line(error)}")
    return Diagnosis(sections, tuple(problems))


def _versions() -> dict[str, str]:
    required = {name: _version(name) or "missing" for name in PACKAGES}
    optional = {name: version for name in _OPTIONAL if (version := _version(name))}
    return {"actor-learner": __version__, "python": platform.python_version(), **required, **optional}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    here, quota = machine.machine(), machine.cpu_quota()
    return {
        "system": here["system"],
        "cpu": here["cpu"],
        "cores of the machine": os.cpu_count(),
        "cores allowed": machine.allowed_cores(),
        "cores by cgroup quota": None if math.isinf(quota) else quota,
        "cores used": machine.available_cores(),
        "actors that leave the learner a core": machine.actors_with_room(),
        "memory, GB": here["memory_gb"],
        "memory available, GB": _gigabytes(machine.system_available()),
        "memory by cgroup limit, GB": _gigabytes(machine.cgroup_limit()),
        "NVIDIA's driver": driver_version() or "none",
    }


def _gigabytes(size: float | None) -> float | None:
    return None if size is None or math.isinf(size) else round(size / 1e9, 1)


def _shared_memory() -> dict[str, Any]:
    found: dict[str, Any] = {"memfd_create": hasattr(os, "memfd_create"), "pidfd_open": False}
    with contextlib.suppress(AttributeError, OSError):
        os.close(os.pidfd_open(os.getpid()))
        found["pidfd_open"] = True
    try:
        disk = os.statvfs(_SHM)
    except OSError:
        return {**found, _SHM: "missing"}
    sizes = [_gigabytes(blocks * disk.f_frsize) for blocks in (disk.f_blocks, disk.f_bavail)]
    return {**found, f"{_SHM} (size, free), GB": sizes}


def _limits(what: str) -> list[int | None] | None:
    """Return the soft and the hard limit, None for no limit; None where the system has no such limits."""
    if (number := getattr(resource, _LIMITS[what], None)) is None:
        return None
    return [None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(number)]


def _requirements() -> Iterator[str]:
    """Yield the required packages that are missing or have the wrong version."""
    try:
        from packaging.requirements import Requirement  # comes with keras

        required = importlib.metadata.requires("actor-learner") or []
    except ImportError:  # no keras; or this package, run from its folder, isn't installed
        return
    others = set(BACKENDS)
    with contextlib.suppress(ValueError):
        others.discard(keras_backend())
    for requirement in map(Requirement, required):
        if requirement.name in others or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            needed = f"{requirement.name}{requirement.specifier}"
            yield f"{needed} is needed: {install_command(needed)}. Received: {requirement.name}={version or 'none'}"


def _shortages(here: Mapping[str, Any]) -> Iterator[str]:
    """Yield the limits and the memory that are too small for even a small run."""
    for what, (least, flag) in _MIN_LIMITS.items():
        soft = (_limits(what) or [None])[0]
        if soft is not None and soft < least:
            yield f"The limit of {what} is low; raise it: ulimit {flag} {4 * least}. Received: {soft}"
    left = [here[name] for name in ("memory available, GB", "memory by cgroup limit, GB") if here[name] is not None]
    if left and min(left) < _MIN_MEMORY_GB:
        yield f"Little memory is left, and a run takes at least 1 GB; end other programs. Received: {min(left)} GB"


def try_it(timeout: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """Train for two seconds in a process of its own, and return the results, or one line on the failure as "failed".

    timeout: seconds after which the process is killed, and the processes that it started end.
    """
    from actor_learner.system.child import Child, ChildEndedError

    try:
        child = Child(f"{__name__}:main", name="self-test")
    except OSError as error:
        return {"failed": f"no process could be started ({error.strerror})"}
    try:
        return dict(child.receive(timeout))
    except TimeoutError:
        return {"failed": f"it did not finish in {timeout:.0f} seconds; is the machine busy?"}
    except ChildEndedError as error:
        return {"failed": str(error)}
    finally:
        child.close()


def main(descriptor: str) -> None:
    """Run the self-test in this process, and send its results."""
    from multiprocessing.connection import Connection

    Connection(int(descriptor)).send(train_briefly())


def train_briefly() -> dict[str, Any]:
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
        if "GPU" in learner.device:
            found["batches, for copies to the GPU"] = _pinning()
        steps_before, start, seconds = learner.env_steps, time.perf_counter(), 0.0
        while seconds < SECONDS:
            _update(actors, learner)
            seconds = time.perf_counter() - start
        found["updates"] = learner.updates
        found["env steps per second"] = round((learner.env_steps - steps_before) / seconds)
    return found


def _pinning() -> str:
    """Return whether the GPU's driver keeps memory in place for copies, or why it doesn't."""
    from actor_learner.actors.transport.pinned import Pin
    from actor_learner.actors.transport.shared_memory import Arena

    arena = Arena.create()
    try:
        arena.reserve(_PINNED_BYTES)
        (pin := Pin(arena)).close()
        return pin.outcome
    finally:
        arena.close()


def _update(actors: Any, learner: Any) -> None:
    metrics = learner.update(actors.collect(timeout=60))
    if not math.isfinite(metrics["loss"]):
        raise RuntimeError(f"An update gave a loss that isn't finite. Received: loss={metrics['loss']}")
    actors.publish(learner.get_weights())


_HOST_SECONDS = 3.0  # of acting on each machine
_NODES_TIMEOUT_SECONDS = 60.0
_START_TIMEOUT_SECONDS = 60.0
_UNROLL_LENGTH = 64


def examine_cluster(address: str, env: str) -> dict[str, Any]:
    """Return the machines, and what an actor on each does with an environment.

    Raises RuntimeError, EnvError, ActorError or TimeoutError in one line, naming the machine where it is one's fault.
    """
    nodes = _nodes(address)
    cpus = {node.name: f"{node.free:g} of {node.cpus:g} CPUs free" for node in nodes}
    figures, own = _act_on_each(address, env, len(cpus)), "the learner's"
    return {
        "machines": len(nodes),
        "CPUs": sum(node.cpus for node in nodes),
        "free CPUs": sum(node.free for node in nodes),
        **{f"host {name}": f"{cpus.get(name, own)}; {text}" for name, text in figures.items()},
    }


def _nodes(address: str) -> list[Node]:
    """Return the machines of a cluster."""
    from actor_learner.actors.cluster.broker import BrokerProcess

    broker, deadline = BrokerProcess(address), time.monotonic() + _NODES_TIMEOUT_SECONDS
    try:
        broker.start()
        while time.monotonic() < deadline:
            for what, found in broker.messages():
                if what == "nodes":
                    return list(found)
        raise RuntimeError(f"Ray at {address} names no machines within {_NODES_TIMEOUT_SECONDS:g} s")
    finally:
        broker.close(time.monotonic() + 1.0)


def _act_on_each(address: str, env: str, num_actors: int) -> dict[str, str]:
    """Return the speed of each machine that had an actor for a few seconds, and what came from it."""
    from actor_learner.actors.pool import ActorPool

    options: dict[str, Any] = {"num_actors": num_actors, "actors_per_host": 1, "envs_per_actor": 8}
    options |= {"ray_address": address, "unroll_length": _UNROLL_LENGTH, "start_timeout": _START_TIMEOUT_SECONDS}
    with ActorPool(env, **options) as actors:
        actors.collect()
        before = {host.name: host for host in actors.hosts}
        started, batches = time.perf_counter(), 0
        while time.perf_counter() - started < _HOST_SECONDS:
            actors.publish(actors.exported.weights)
            actors.collect()
            batches += 1
        figures = {}
        for host in actors.hosts:
            steps = batches * _UNROLL_LENGTH * host.num_envs
            earlier = before.get(host.name, host)
            received, receiving = host.received - earlier.received, host.receiving - earlier.receiving
            text = f"{steps / (time.perf_counter() - started):,.0f} env steps/s"
            if received and receiving:
                speed = f"{received / receiving / 1e6:,.0f} MB/s"
                text += f", {received / steps:,.0f} bytes for each, which came at {speed}"
            figures[host.name] = text
    return figures
