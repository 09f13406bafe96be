"""The step of a policy as a program of the learner's device, which acts for many environments at once."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from actor_learner.learner import backend
from actor_learner.learner.cost import multiplications
from actor_learner.learner.packing import split_weights
from actor_learner.networks.step import PolicyStep
from actor_learner.spaces.packed import places, row_dtype, step_results
from actor_learner.spaces.spaces import Spaces
from actor_learner.system.types import Array, Tensor


class DeviceStep:
    """A network's step on the learner's device, for any number of rows, each of which is compiled once.

    It computes what an exported policy's step graph does, in the network's own precision. A call copies one array to
    the device and one back: copies take longer than the arithmetic of small networks.

    device: "auto", "cpu" or "gpu". Raises ValueError as a `Learner` does for a device that isn't there.
    """

    def __init__(self, network: keras.Model, spaces: Spaces, device: str = "auto") -> None:
        self.device = backend.resolve_device(device)
        self._network, self.policy = network, PolicyStep(network, spaces)
        self._inputs = row_dtype((spec.shape[1:], spec.dtype) for spec in self.policy.inputs(1))
        self._results = step_results(spaces, self.policy.state_shapes)
        self._shapes = [tuple(weight.shape) for weight in network.weights]
        self._multiplications = multiplications(network)
        self._compiled: dict[int, backend.Compiled] = {}

    def load(self, vector: Array) -> Tensor:
        """Copy a version of the weights, one float32 vector, to the device."""
        own = np.array(vector)  # on a CPU, a device's array may be the host's memory
        with backend.device(self.device):
            return backend.to_device(own)

    def __call__(self, weights: Tensor, inputs: Array) -> Array:
        """Return packed rows `[N]` of sampled actions, their log-probabilities and the state, as `step_results`.

        weights: The result of `load`. inputs: Packed rows `[N]` of the inputs of `PolicyStep.step`.
        """
        rows = len(inputs)
        if (program := self._compiled.get(rows)) is None:
            with_xla = backend.use_xla(self._network, self.device, 2.0 * self._multiplications * rows)
            program = self._compiled[rows] = backend.Compiled(self._step, (), with_xla=with_xla)
        with backend.device(self.device):
            found = backend.to_numpy(program(weights, inputs.view(np.uint8).reshape(rows, -1)))
        return found.view(self._results)[:, 0]

    def _step(self, weights: Tensor, data: Tensor) -> Tensor:
        """Return the bytes of the results, `[N, bytes]` uint8. weights: A vector. data: The bytes of the inputs."""
        rows = data.shape[0]
        inputs = [
            ops.reshape(backend.from_bytes(data[:, place.start : place.stop], place.dtype), (rows, *place.shape))
            for place in places(self._inputs)
        ]
        stepped = self.policy.step(inputs, self.weights_of(weights))
        return self._pack([*stepped.action, stepped.log_prob, *stepped.state], rows)

    def weights_of(self, vector: Tensor) -> list[Tensor]:
        """Return the weights of a vector, in their shapes."""
        return split_weights(vector, self._shapes, ops.reshape)

    def _pack(self, results: Sequence[Tensor], rows: int) -> Tensor:
        own = places(self._results)
        stops = [*(place.start for place in own[1:]), self._results.itemsize]
        found = []
        for result, place, stop in zip(results, own, stops, strict=True):
            data = ops.view(ops.reshape(ops.cast(result, place.dtype.name), (rows, -1)), "uint8")
            found.append(ops.pad(data, ((0, 0), (0, stop - place.stop))) if stop > place.stop else data)
        return ops.concatenate(found, axis=1)
