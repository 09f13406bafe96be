"""Updates of one device and of two that share them: `python -m tests.support.shared_updates OUTPUT.json CASE ...`.

The one device gets the rows in the order in which two take them. Needs JAX with two devices of the CPU.
"""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np

from actor_learner.learner.jax import compiled  # once Keras has its backend
from tests.support.backend_updates import draw_no_weights, learn


def in_the_order_of_two(learner):
    """Let a learner of one device take the minibatches that two would take."""
    learner._share = as_two_would(learner.algorithm.source().share(2))


def as_two_would(share):
    """The order of rows in which one device takes what two, each with half of the columns, would take."""

    def order(valid, rng):
        parts = [share.order(part, rng) for part in np.split(valid, 2, axis=1)]
        columns = valid.shape[1]
        taken = []
        for device, (index, _) in enumerate(parts):
            step, column = np.divmod(index, columns // 2)
            taken.append(np.where(index < 0, -1, step * columns + device * (columns // 2) + column))
        return np.concatenate(taken, axis=1), max(count for _, count in parts)

    def shape(rows):
        minibatches, size = share.shape(rows // 2)
        return minibatches, 2 * size

    def of_sequences(length):
        return as_two_would(share.of_sequences(length))

    return SimpleNamespace(order=order, shape=shape, longest_sequence=share.longest_sequence, of_sequences=of_sequences)


def greatest_difference(name):
    """What one device learned, the greatest difference of a number from what two did, and their compiled text."""
    one, two = {}, {}
    learn(name, one, in_the_order_of_two)
    learner = learn(name, two, devices=2)
    assert one.keys() == two.keys()
    difference = max(float(np.abs(one[key] - two[key]).max()) for key in one)
    (program,) = learner._compiled._programs.values()
    return one, difference, program.as_text()


def of_known_length(name, usual):
    """The parts of a program whose loops have a known length, as on a GPU. It must learn as usual, but for rounding."""
    known = {}
    with mock.patch.object(compiled, "_on_cpu", return_value=False):
        learner = learn(name, known, in_the_order_of_two)
    for key in usual | known:
        np.testing.assert_allclose(known[key], usual[key], rtol=0, atol=2e-6, err_msg=key)
    (program,) = learner._compiled._programs.values()
    entry = program.as_text().partition("\nENTRY ")[2]
    return {
        "parameters": len(re.findall(r" parameter\(", entry)),
        "loops": len(re.findall(r" while\(", program.as_text())),
        "known": len(re.findall(r" while\(.*known_trip_count", program.as_text())),
    }


def main(output, *names):
    found, alone = {}, {}
    draw_no_weights()
    for name in names:
        alone[name], difference, text = greatest_difference(name)
        found[name] = {
            "difference": difference,
            "products": sorted(set(re.findall(r"= (\S+?)\{\S* dot\(", text))),
            "gathered": sorted(set(re.findall(r"= (\S+?)\{\S* all-gather\(", text))),
        }
    found["known length"] = of_known_length(names[0], alone[names[0]])
    with open(output, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
