"""Environments in JAX: updates beside a PureJaxRL-style program and ordinary actors, truncations, Brax's PPO.

    scripts/measure device --output benchmarks/device/device.json     # 15 minutes
    scripts/measure device --device gpu --output gpu-device.json      # on a GPU

CartPole is this folder's own, so that no library is needed. Works whose library isn't installed are left out;
`--python` names an interpreter that has it. Ways alternate in one process; each round of a way takes `--seconds`. The
figures are milliseconds of an update with its rollout, medians of the rounds, and ratios round by round.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from actor_learner.system.machine import available_cores
from benchmarks.harness import Figures, make_parser, origin, ratio_of, report, run_python, tell

CART_POLE = "jax:benchmarks.device.envs:CartPole"
ACTORS = ("envpool:CartPole-v1", "CartPole-v1")
EPOCHS = 4


@dataclass(frozen=True)
class Work:
    """PPO on one environment. packages: those it needs. ways: beside ours on the device."""

    num_envs: int
    unroll_length: int
    minibatch_size: int
    env: str = CART_POLE
    packages: tuple[str, ...] = ()
    ways: tuple[str, ...] = ("program", *ACTORS)


WORKS = {
    "cartpole8": Work(8, 128, 256),
    "cartpole64": Work(64, 32, 512),
    "cartpole2048": Work(2048, 32, 16_384),
    "gymnax64": Work(64, 32, 512, "gymnax:CartPole-v1", ("gymnax",), ("program",)),
    "craftax256": Work(256, 64, 4096, "craftax:Craftax-Classic-Symbolic-v1", ("craftax",), ("program",)),
    "cheetah64": Work(64, 32, 512, "playground:CheetahRun", ("mujoco_playground",), ("HalfCheetah-v5",)),
}

BRAX = {"brax:inverted_pendulum": 300_000}
"""Env steps of Brax's PPO by environment."""
BRAX_SETTINGS: Figures = {
    "num_evals": 7,
    "reward_scaling": 10,
    "episode_length": 1000,
    "normalize_observations": True,
    "action_repeat": 1,
    "unroll_length": 5,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
    "discounting": 0.97,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-2,
    "batch_size": 64,
    "num_envs": 64,
    "num_eval_envs": 20,
    "deterministic_eval": True,
}
"""Those of Brax's own training notebook, with fewer environments, as the steps are fewer."""
ENDLESS = {"num_envs": 16, "unroll_length": 16, "minibatch_size": 64, "epochs": 10, "updates": 60}
PARTS = ("speed", "truncation", "brax")
SECONDS = 1800.0


def main() -> None:
    parser = make_parser("device", __doc__ or "", works=list(WORKS), rounds=9, seconds=2.0, num_actors=2, seeds=3)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="of learner and simulator")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--python", default=sys.executable, help="the interpreter to measure in")
    arguments = parser.parse_args()
    found: Figures = {**origin(parser), "device": arguments.device, "works": {}}

    def child(kind: str, task: Figures) -> Any:
        words = ["-m", "benchmarks.device.child", kind, json.dumps({"device": arguments.device, **task})]
        environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu" if arguments.device == "cpu" else None}
        printed = run_python(words, environment=environment, seconds=SECONDS, python=arguments.python)
        return json.loads(printed.splitlines()[-1])

    def has(packages: tuple[str, ...]) -> bool:
        code = f"import sys, importlib.util as u; sys.exit(0 if all(map(u.find_spec, {packages!r})) else 'missing')"
        try:
            run_python(["-c", code], python=arguments.python)
        except Exception:
            return False
        return True

    if "truncation" in arguments.parts:
        found["truncation"] = child("truncation", ENDLESS)
    for name in arguments.works if "speed" in arguments.parts else ():
        work = WORKS[name]
        if not has(work.packages):
            tell(f"{name} is left out: it needs {', '.join(work.packages)}")
            continue
        tell(f"{name} ...")
        task = dataclasses.asdict(work) | {"ways": ["device", *work.ways], "epochs": EPOCHS}
        task |= {"rounds": arguments.rounds, "seconds": arguments.seconds, "num_actors": arguments.num_actors}
        found["works"][name] = summary(work, child("speed", task))
    if "brax" in arguments.parts and has(("brax",)):
        for env, steps in BRAX.items():
            settings = {**BRAX_SETTINGS, "num_timesteps": steps}
            runs = [
                child("brax_ppo", {"env": env, "seed": seed, "settings": settings}) for seed in range(arguments.seeds)
            ]
            found.setdefault("brax_ppo", {})[env] = runs
    found["cores"] = available_cores()
    report(found, arguments.output)


def summary(work: Work, rounds: dict[str, list[Figures]]) -> Figures:
    """Return milliseconds, env steps a second and the ratios of speeds to ours."""
    steps = work.num_envs * work.unroll_length
    seconds = {way: [each["update"] for each in own] for way, own in rounds.items()}
    found: Figures = {"steps": steps, "ways": {}}
    for way, own in seconds.items():
        middle = statistics.median(own)
        found["ways"][way] = {"update_ms": 1e3 * middle, "steps_per_second": steps / middle}
    rollout = statistics.median(each["rollout"] for each in rounds["device"])
    found["ways"]["device"] |= {"rollout_ms": 1e3 * rollout, "rollout_steps_per_second": steps / rollout}
    found["ours_over"] = {way: ratio_of(own, seconds["device"]) for way, own in seconds.items() if way != "device"}
    found["rounds_ms"] = {way: [round(1e3 * each, 3) for each in own] for way, own in seconds.items()}
    return found


if __name__ == "__main__":
    main()
