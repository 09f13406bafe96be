"""Environments in JAX: updates beside a program in PureJaxRL's manner and ordinary actors; truncations.

    scripts/measure device --output benchmarks/device/device.json     # ten minutes
    scripts/measure device --device gpu --output gpu-device.json      # on a GPU

CartPole is this folder's own, so that no library is needed. Works whose library isn't installed are left out;
`--python` names an interpreter that has it. Variants alternate in one process; each round of one takes `--seconds`.
Actors collect one batch ahead, and are idle while others are measured. The figures are milliseconds of an update with
its rollout, medians of the rounds, and ratios round by round.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actor_learner.system.machine import available_cores
from benchmarks.harness import Figures, RunFailedError, make_parser, origin, ratio_of, report, run_python, tell, write

CART_POLE = "jax:benchmarks.device.envs:CartPole"
ACTORS = {
    "EnvPool": {"env": "envpool:CartPole-v1"},
    "NumPy": {"env": "CartPole-v1"},  # Gymnasium's vector environment
    "Python": {"env": "CartPole-v1", "vectorization": "sync"},  # one after the other
}
EPOCHS = 4
CHEETAH: Figures = {
    "env": "playground:CheetahRun",
    "env_kwargs": {"config_overrides": {"impl": "jax"}},  # not MuJoCo Warp, which CPUs lack
    "package": "mujoco_playground",
    "program": False,
    "actors": {"MuJoCo": {"env": "HalfCheetah-v5", "env_kwargs": {"frame_skip": 1}}},  # as many as CheetahRun's
}


@dataclass(frozen=True)
class Work:
    """PPO on one environment. package: the one that it needs. program, actors: what ours on the device is beside."""

    num_envs: int
    unroll_length: int
    minibatch_size: int
    env: str = CART_POLE
    package: str = "jax"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    program: bool = True
    actors: Mapping[str, Figures] = field(default_factory=dict)


WORKS = {
    "cartpole8": Work(8, 128, 256, actors=ACTORS),
    "cartpole64": Work(64, 32, 512, actors=ACTORS),
    "cartpole2048": Work(2048, 32, 16_384, actors=ACTORS),
    "gymnax64": Work(64, 32, 512, "gymnax:CartPole-v1", "gymnax"),
    "craftax256": Work(256, 64, 4096, "craftax:Craftax-Classic-Symbolic-v1", "craftax"),
    "cheetah64": Work(64, 32, 512, **CHEETAH),
    "cheetah2048": Work(2048, 32, 8192, **CHEETAH),
}
OF_TRUNCATION = Work(16, 20, 80, "jax:benchmarks.device.envs:Endless")
"""Of whole episodes: else the value would depend on which steps the last batch has."""
PARTS = ("speed", "truncation")
SECONDS = 1800.0


def main() -> None:
    parser = make_parser("device", __doc__ or "", works=list(WORKS), rounds=10, seconds=1.5, num_actors=2)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="of learner and simulator")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--python", default=sys.executable, help="the interpreter to measure in")
    arguments = parser.parse_args()
    found: Figures = {**origin(parser), "device": arguments.device, "cores": available_cores(), "works": {}}

    def child(kind: str, task: Figures) -> Any:
        words = ["-m", "benchmarks.device.child", kind, json.dumps({"device": arguments.device, **task})]
        environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu" if arguments.device == "cpu" else None}
        printed = run_python(words, environment=environment, seconds=SECONDS, python=arguments.python, stderr=None)
        return json.loads(printed.splitlines()[-1])

    code = f"import importlib.util as u; print([u.find_spec(name) is not None for name in {[*packages()]}])"
    installed = dict(
        zip(packages(), json.loads(run_python(["-c", code], python=arguments.python).lower()), strict=True)
    )
    if not installed["jax"]:
        raise RunFailedError(f"--python must name an interpreter that has JAX. Received: {arguments.python}")
    if arguments.device == "gpu":
        code = "import jax; print(jax.devices('gpu')[0].device_kind, 'by JAX', jax.__version__)"
        found["gpu"] = run_python(["-c", code], python=arguments.python).strip()
    settings = {"rounds": arguments.rounds, "seconds": arguments.seconds, "num_actors": arguments.num_actors}
    for name in arguments.works if "speed" in arguments.parts else ():
        work = WORKS[name]
        if not installed[work.package]:
            tell(f"{name} is left out: it needs {work.package}")
            continue
        tell(f"{name} ...")
        try:
            rounds = child("speed", {**dataclasses.asdict(work), **settings, "epochs": EPOCHS})
            found["works"][name] = summary(work, rounds)
        except RunFailedError as error:  # after which the other works are measured all the same
            tell(str(error))
            found["works"][name] = {"failed": str(error)}
        write(found, arguments.output)  # what is measured isn't lost with what comes next
    if "truncation" in arguments.parts:
        found["truncation"] = child("truncation", {**dataclasses.asdict(OF_TRUNCATION), "epochs": 10, "updates": 60})
    report(found, arguments.output)
    if failed := [name for name, work in found["works"].items() if "failed" in work]:
        raise RunFailedError(f"these works failed: {', '.join(failed)}; what they printed is above")


def packages() -> list[str]:
    return sorted({work.package for work in WORKS.values()})


def summary(work: Work, rounds: dict[str, list[Figures]]) -> Figures:
    """Return milliseconds, env steps a second and our speed divided by theirs."""
    steps = work.num_envs * work.unroll_length
    seconds = {name: [each["update"] for each in own] for name, own in rounds.items()}
    found: Figures = {"steps": steps, "variants": {}}
    for name, own in seconds.items():
        middle = statistics.median(own)
        found["variants"][name] = {"update_ms": 1e3 * middle, "steps_per_second": steps / middle}
    rollout = statistics.median(each["rollout"] for each in rounds["device"])
    found["variants"]["device"] |= {"rollout_ms": 1e3 * rollout, "rollout_steps_per_second": steps / rollout}
    found["ours_over"] = {name: ratio_of(own, seconds["device"]) for name, own in seconds.items() if name != "device"}
    found["rounds_ms"] = {name: [round(1e3 * each, 3) for each in own] for name, own in seconds.items()}
    return found
