"""Updates that two processes share, as two hosts would: `python -m tests.support.hosts ADDRESS INDEX OUTPUT CASE ...`.

Each process learns from its half of the columns. With ADDRESS "none" it is one process with one device, which takes
the rows in the same order.
"""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import jax
import numpy as np

HOSTS = 2


def half(batch, index):
    """The columns of a host, whose environments have numbers of its own."""

    def of(name, value):
        by_column = name in {"policy_version", "env_index", "final_observation", "final_row"}
        return jax.tree.map(lambda leaf: np.split(leaf, HOSTS, axis=0 if by_column else 1)[index], value)

    fields = {name: of(name, value) for name, value in batch._asdict().items() if value is not None}
    return batch._replace(**fields | {"env_index": None})


def in_the_order_of_hosts(learner):
    """Let one device take the minibatches that hosts would take, each with a random stream of its own."""
    from tests.support.shared_updates import as_two_would

    share = learner.algorithm.source().share(HOSTS)
    streams = itertools.cycle([learner._rng, np.random.Generator(learner._rng.bit_generator.jumped(1))])
    learner._share = as_two_would(
        SimpleNamespace(
            order=lambda valid, rng: share.order(valid, next(streams)),
            shape=share.shape,
            longest_sequence=share.longest_sequence,
        )
    )


def main(address, index, output, *names):
    if address != "none":
        jax.distributed.initialize(address, HOSTS, int(index), initialization_timeout=120)
    from tests.support.backend_updates import draw_no_weights, learn

    arrays = {}
    draw_no_weights()
    for name in names:
        if address == "none":
            learn(name, arrays, in_the_order_of_hosts)
        else:
            learn(name, arrays, devices=HOSTS, part=lambda batch: half(batch, int(index)))
    np.savez(output, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
