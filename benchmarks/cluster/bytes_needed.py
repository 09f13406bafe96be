"""Bytes that cross the network for each env step, by environment: whole, and with the frames of a stack sent once.

scripts/measure cluster-bytes --envs CartPole-v1 ALE/Pong-v5
"""

from __future__ import annotations

import actor_learner as al
from actor_learner.actors.cluster.codec import ColumnCodec
from benchmarks.harness import Figures, make_parser, origin, report

ENVS = ("CartPole-v1", "HalfCheetah-v5", "Humanoid-v5", "ALE/Pong-v5")
UNROLL_LENGTH, NUM_ENVS = 128, 8


def main() -> None:
    parser = make_parser("cluster-bytes", __doc__ or "")
    parser.add_argument("--envs", nargs="+", default=ENVS)
    arguments = parser.parse_args()
    found = {env: bytes_of(env) for env in arguments.envs}
    report({**origin(parser), "bytes_per_step": found}, arguments.output)


def bytes_of(env: str) -> Figures:
    """Return the bytes of an env step, of a batch that was played."""
    options = {"num_actors": 0, "envs_per_actor": NUM_ENVS, "unroll_length": UNROLL_LENGTH}
    with al.ActorPool(env, **options) as actors:
        actors.collect()
        trajectory_block = actors._blocks[0]
        columns = ColumnCodec(actors.layout)
        sent = sum(len(part) for part in columns.encode(trajectory_block, 0, NUM_ENVS))
        rows = UNROLL_LENGTH * NUM_ENVS
        return {"sent": round(sent / rows, 1), "whole": round(columns.max_bytes(NUM_ENVS) / rows, 1)}


if __name__ == "__main__":
    main()
