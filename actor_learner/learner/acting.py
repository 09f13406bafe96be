"""The step of a policy as a program of the learner's device, which acts for many environments at once."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np

from actor_learner.learner import backend
from actor_learner.learner.cost import multiplications
from actor_learner.learner.weights import split_weights
from actor_learner.networks.step import PolicyStep
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.types import Array, Tensor


class DeviceStep:
    """A network's step on the learner's device, for any number of rows, each of which is compiled once.

    It computes what an exported policy's step graph does, in the network's own precision.

    device: "auto", "cpu" or "gpu". Raises ValueError as a `Learner` does for a device that isn't there.
    """

    def __init__(self, network: keras.Model, spaces: Spaces, device: str = "auto") -> None:
        self.device = backend.resolve_device(device)
        self._network, self._policy = network, PolicyStep(network, spaces)
        self._shapes = [tuple(weight.shape) for weight in network.weights]
        self._multiplications = multiplications(network)
        self._compiled: dict[int, backend.Compiled] = {}

    def load(self, vector: Array) -> list[Tensor]:
        """Copy a version of the weights, one float32 vector, to the device."""
        own = np.array(vector)  # on a CPU, a device's array may be the host's memory
        with backend.device(self.device):
            return list(map(backend.to_device, split_weights(own, self._shapes)))

    def __call__(self, weights: Sequence[Tensor], inputs: Sequence[Array]) -> list[Array]:
        """Return the leaves of sampled actions `[N, ...]`, their log-probabilities `[N]` and the leaves of the state.

        weights: What `load` returned. inputs: Those of `PolicyStep.step`.
        """
        with backend.device(self.device):
            arguments = list(weights), [backend.to_device(array) for array in inputs]
            return [backend.to_numpy(output) for output in self._program(len(inputs[0]))(*arguments)]

    def _program(self, rows: int) -> backend.Compiled:
        if (compiled := self._compiled.get(rows)) is None:
            with_xla = backend.use_xla(self._network, self.device, 2.0 * self._multiplications * rows)
            compiled = self._compiled[rows] = backend.Compiled(self._step, (), with_xla=with_xla)
        return compiled

    def _step(self, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        stepped = self._policy.step(inputs, weights)
        return [*stepped.action, stepped.log_prob, *stepped.state]
