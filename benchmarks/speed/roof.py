"""The speed against the roof on the four works, at lag 0 and 1: `actor-learner benchmark` for each.

scripts/measure roof --output benchmarks/speed/roof.json    # six minutes
scripts/measure roof --works cartpole pong --lags 1
"""

from __future__ import annotations

import json
import sys

from benchmarks.harness import Found, make_parser, origin, run_python
from benchmarks.works import WORKS


def main() -> None:
    parser = make_parser("roof", __doc__ or "", works=list(WORKS), lags=[1, 0], num_actors=2, rounds=5, seconds=1.0)
    arguments = parser.parse_args()
    result: Found = {**origin(parser), "works": {}}
    for name in arguments.works:
        for lag in arguments.lags:
            flags = {"max_policy_lag": lag, "rounds": arguments.rounds, "seconds": arguments.seconds}
            words = ["benchmark", *WORKS[name].words(arguments.num_actors, **flags), "--json"]
            found = json.loads(run_python(["-m", "actor_learner.cli", *words], seconds=1800, stderr=sys.stderr))
            result["works"].setdefault(name, {})[f"lag {lag}"] = found
            print(line(name, lag, found), flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def line(name: str, lag: int, found: Found) -> str:
    """Return a work in one line, with the cores' shares."""
    cores = {part: share for part, share in found["cores"].items() if part != "count" and share >= 0.01}
    shares = ", ".join(f"{part} {share:.0%}" for part, share in cores.items())
    slower = ", ".join(f"{part} {factor:.2f}x" for part, factor in found["slower_than_alone"].items())
    return (
        f"{name:11} lag {lag}: {found['achieved_steps_per_second']:>9,.0f} / {found['roof_steps_per_second']:>9,.0f} = "
        f"{found['ratio']:.1%}, limit {found['limit']}; cores: {shares}; slower than alone: {slower}"
    )
