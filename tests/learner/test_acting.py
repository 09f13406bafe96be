"""A policy's step on the learner's device: from packed inputs to packed results, whatever the dtypes."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actor_learner.learner import backend
from actor_learner.learner.acting import DeviceStep
from actor_learner.networks.default import default_network
from actor_learner.networks.step import PolicyStep
from actor_learner.spaces.packed import row_dtype, unpacked
from actor_learner.spaces.spaces import Spaces

pytestmark = pytest.mark.slow

ROWS = 5
OBSERVATION = Dict(
    byte=Box(0, 255, (3,), np.uint8),  # so that the next array isn't beside it
    choice=Discrete(4),
    half=Box(-1, 1, (3,), np.float16),
    long=Box(-(2**40), 2**40, (2, 2), np.int64),
    short=Box(-9, 9, (1,), np.int16),
    wide=Box(-1, 1, (2,), np.float64),
)
KINDS = {
    "masks": (Tuple([Discrete(3), MultiDiscrete([2, 4])]), True, {}),
    "memory": (Dict(a=Box(-1, 1, (2,), np.float32), b=MultiBinary(3)), False, {"memory": "lstm", "memory_size": 4}),
}


def numbers(spec, random):
    """Small enough for 32 bits of 64."""
    if spec.dtype.kind == "f":
        return random.uniform(0.1, 0.9, spec.shape)
    return random.integers(0 if spec.dtype.kind == "u" else -3, 4, spec.shape)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # JAX's, of Keras
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_step_returns_what_the_policy_does(kind):
    action, masked, options = KINDS[kind]
    spaces = Spaces(OBSERVATION, action, masked)
    network = default_network(OBSERVATION, action, hidden_sizes=(6,), seed=0, **options)
    policy, random = PolicyStep(network, spaces), np.random.default_rng(0)
    specs = policy.inputs(ROWS)
    rows = np.zeros(ROWS, row_dtype((spec.shape[1:], spec.dtype) for spec in specs))
    for view, spec in zip(unpacked(rows), specs, strict=True):
        view[...] = np.ones(spec.shape) if spec.name == "action_mask" else numbers(spec, random)
        assert np.shares_memory(view, rows)
    weights = [random.normal(0, 0.5, weight.shape).astype(np.float32) for weight in network.weights]
    step = DeviceStep(network, spaces, "cpu")
    found = step(step.load(np.concatenate([weight.ravel() for weight in weights])), rows)
    with backend.device(step.device):
        stepped = policy.step(backend.to_device([np.array(view) for view in unpacked(rows)]), weights)
    expected = [*stepped.action, stepped.log_prob, *stepped.state]
    leaves = unpacked(found)
    assert [leaf.dtype for leaf in leaves[: len(stepped.action)]] == [leaf.dtype for leaf in spaces.action.leaves]
    for leaf, tensor in zip(leaves, expected, strict=True):
        np.testing.assert_allclose(leaf, backend.to_numpy(tensor), rtol=1e-5, atol=1e-6)
