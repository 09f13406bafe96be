"""Exports on JAX without TensorFlow: `python -m tests.support.direct_exports OUTPUT.json`.

Each case exports a network, gives it other weights, and compares the policy with Keras. Writes for each case what went
wrong, or an empty text, whether its graphs resize, and the weights that are inputs.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actor_learner.system.keras_import import import_keras

import_keras()

from actor_learner.networks.default import default_network  # noqa: E402
from actor_learner.policy.export.litert import convert_network  # noqa: E402
from actor_learner.policy.export.traced import InexpressibleError  # noqa: E402
from actor_learner.policy.export.verify import draw_mask  # noqa: E402
from actor_learner.policy.policy import Policy  # noqa: E402
from actor_learner.spaces.spaces import Spaces  # noqa: E402
from tests.support.exporting import (  # noqa: E402
    ACTIONS,
    IMAGE,
    VECTOR,
    VECTOR_NETWORKS,
    assert_agrees,
    changed_weights,
    observations,
)

TORQUES = Box(-1, 1, (2,), np.float32)
NESTED = Dict(a=VECTOR, n=Discrete(5), image=IMAGE)
DEFAULTS = {
    "several rows": (VECTOR, Discrete(2, start=3), {}, 16),
    "Dict": (NESTED, Dict(kind=Discrete(4), box=TORQUES, bits=MultiBinary(3)), {"normalize_observation": True}, 5),
    "Tuple and masks": (Tuple([VECTOR, Discrete(4)]), MultiDiscrete([3, 5]), {"masked": True}, 5),
    "int64": (Box(0, 9, (5,), np.int64), ACTIONS, {}, 2),
}
OF_USERS = ["batch normalization before dense", "softplus(weight)"]


def of_users(make, observation_space):
    return lambda: (make(), Spaces(observation_space, ACTIONS), 8)


def of_defaults(observation_space, action_space, options, rows):
    options = dict(options)
    masked = options.pop("masked", False)
    return lambda: (
        default_network(observation_space, action_space, **options),
        Spaces(observation_space, action_space, masked),
        rows,
    )


CASES = {
    **{name: of_users(VECTOR_NETWORKS[name], VECTOR) for name in OF_USERS},
    **{name: of_defaults(*case) for name, case in DEFAULTS.items()},
}
"""name -> a function that returns (network, spaces, batch size)"""


def check(name):
    """Returns what is to be known of a case; raises if its policy and Keras disagree."""
    network, spaces, rows = CASES[name]()
    if not network.built:
        network(np.zeros((1, *spaces.observation_space.shape), np.float32))
    exported, fallbacks = convert_network(network, spaces, rows)
    assert not fallbacks
    policy = Policy(exported)
    network.set_weights(changed_weights(network))
    policy.set_weights(network.get_weights())
    for count in (rows, 3):
        observation = observations(spaces.observation_space, count)
        mask = draw_mask(spaces.masks, np.random.default_rng(0), count) > 0 if spaces.masked else None
        assert_agrees(policy, network, spaces.action_space, observation, 3e-5, mask)
    graphs = exported.step_graph, exported.value_graph
    fed = sorted({exported.weight_names[index] for graph in graphs for index in graph.inputs})
    return {"error": "", "resizable": [graph.resizable for graph in graphs], "fed": fed}


def main(output):
    results = {}
    for name in CASES:
        try:
            results[name] = check(name)
        except InexpressibleError as error:
            results[name] = {"error": str(error)}
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    assert "tensorflow" not in sys.modules, "TensorFlow was loaded"
    Path(output).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
