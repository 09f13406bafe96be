"""The SHA-256 of the final weights of short runs, here and at another commit: are they the same bytes?

    scripts/measure same-bytes --against a31663f --output benchmarks/speed/same_bytes.json    # 15 minutes

Every run is a command of the launch script on two backends, with critics among its weights where it has some. Bytes
depend on the machine, so both commits run here. The exit code is 1 if a digest differs.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from benchmarks.harness import Figures, make_parser, origin, report, run_python, tell
from benchmarks.speed.speed import trees_of

RUNS = {
    "CartPole, lag 0": "CartPole-v1 --total-steps 20000 --max-policy-lag 0",
    "CartPole, lag 1": "CartPole-v1 --total-steps 20000 --max-policy-lag 1",
    "LunarLander": "LunarLander-v3 --total-steps 100000 --max-policy-lag 0",
    "DQN on CartPole": "CartPole-v1 --algorithm dqn --total-steps 5000",
    "SAC on Pendulum": "Pendulum-v1 --algorithm sac --total-steps 1500",
    "memory on CartPole": "actor_learner/CartPoleNoVelocity-v0 --memory gru --total-steps 16384 --max-policy-lag 0",
}
BACKENDS = "tensorflow", "jax"
QUIETLY = "--seed", "3", "--quiet", "--no-tensorboard"

DIGEST = """
import hashlib, sys
import actor_learner as al
learner = al.Learner.load(sys.argv[1])
found = hashlib.sha256()
for model in (learner.network, *getattr(learner, "critics", ())):
    for weight in model.get_weights():
        found.update(weight.tobytes())
print(found.hexdigest())
"""


def main() -> int:
    parser = make_parser("same-bytes", __doc__ or "", works=tuple(RUNS))
    parser.add_argument("--against", metavar="GIT_REF", help="compare the working tree with this commit")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same-bytes-") as folder:
        trees = trees_of(arguments.against, Path(folder))
        works: Figures = {}
        for name, backend in itertools.product(arguments.works, BACKENDS):
            found = {where: digest(name, backend, tree) for where, tree in trees.items()}
            works[f"{name}, {backend}"] = found
            tell(f"{name}, {backend}: {' '.join(sha256[:16] for sha256 in found.values())}")
    others = [name for name, found in works.items() if len(set(found.values())) > 1]
    report({**origin(parser), "against": arguments.against, "others": others, "sha256": works}, arguments.output)
    return int(bool(others))


def digest(name: str, backend: str, tree: Path) -> str:
    """Return the SHA-256 of what a run by the packages in `tree` ends with."""
    environment = {"KERAS_BACKEND": backend}
    with tempfile.TemporaryDirectory(prefix="same-bytes-") as folder:
        words = ["train", *RUNS[name].split(), *QUIETLY, "--run-dir", f"{folder}/run"]
        run_python(["-m", "actor_learner", *words], path=tree, environment=environment)
        return run_python(["-c", DIGEST, f"{folder}/run/checkpoints/final"], path=tree, environment=environment).strip()
