"""The learners of several policies that play the same games, as one learner of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from actor_learner.learner.learner import Learner
from actor_learner.networks.saving import save_network
from actor_learner.spaces.trajectory import Trajectory
from actor_learner.system.files import Entry, write_folder_atomically
from actor_learner.system.policies import policy_folder
from actor_learner.system.types import Array


class Networks(keras.Model):  # type: ignore[misc]
    """The networks of several policies as one model, for callbacks: its weights are those of all.

    networks: by the policies' names.
    """

    def __init__(self, networks: Mapping[str, keras.Model]) -> None:
        super().__init__(name="policies")
        self.networks = dict(networks)
        self.built = True

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of each network for its own inputs."""
        return {name: network(inputs[name]) for name, network in self.networks.items()}


class Team:
    """Updates several learners from one batch, one after the other; an undone update of one changes no other.

    It has the part of a learner's interface that a run uses. Metrics have the policy's name before their own:
    "good/policy_loss".

    members: the learners, by the policies' names. networks: of all policies, also of those that don't learn. fixed: the
    weights of the latter, as one vector each. total_steps: of the run, in the rows of all learners; schedules of each
    learner follow the run.
    """

    device = ""  # each learner has its own
    offline_steps = 0

    def __init__(
        self,
        members: Mapping[str, Learner],
        networks: Mapping[str, keras.Model],
        fixed: Mapping[str, Array],
        total_steps: int,
        updates: int = 0,
    ) -> None:
        self.members = dict(members)
        self.network = Networks(networks)
        self._total_steps, self.updates = total_steps, updates
        """Updates in which a learner learned something."""
        self._fixed = dict(fixed)
        self._changed = dict.fromkeys(members, updates)  # the update after which a learner's weights last changed
        self.not_finite: tuple[str, ...] = ()

    @property
    def env_steps(self) -> int:
        """The rows that all learners have learned from."""
        return sum(member.env_steps for member in self.members.values())

    @property
    def steps(self) -> int:
        """As of a `Learner`."""
        return self.env_steps

    @property
    def compiled_with_xla(self) -> bool | None:
        """True if XLA compiles the updates of all learners; None before the first batch."""
        found = [member.compiled_with_xla for member in self.members.values()]
        return None if None in found else all(found)

    def get_weights(self) -> list[Array]:
        """Return the weights of all networks."""
        return [weight for network in self.network.networks.values() for weight in network.get_weights()]

    def flat_weights(self) -> Array:
        """Return the weights of all policies as one float32 vector, for `ActorPool.publish`."""
        return np.concatenate(
            [
                self.members[name].flat_weights() if name in self.members else self._fixed[name]
                for name in self.network.networks
            ]
        )

    def update(self, trajectories: Mapping[str, Trajectory], *, on_policy: Any = None) -> dict[str, float]:
        """Update each learner from its own batch; one whose batch has no valid row is left out.

        Metrics: "<policy>/undone" for an undone update; "undone" where nothing was learned. on_policy: unused, for the
        versions in the batch say when each learner's weights have changed.
        """
        metrics: dict[str, float] = {}
        learned: list[str] = []
        done = self.env_steps
        for name, member in self.members.items():
            trajectory = trajectories[name]
            if not trajectory.valid.any():
                continue
            if done:  # so that it has learned from the same share of its rows as the run of all rows
                member.total_steps = max(1, round(self._total_steps * member.env_steps / done))
            found = member.update(trajectory, on_policy=trajectory.policy_version >= self._changed[name])
            metrics |= {f"{name}/{key}": value for key, value in found.items()}
            if "undone" not in found:
                learned.append(name)
        self.not_finite = tuple(f"{name}/{part}" for name, each in self.members.items() for part in each.not_finite)
        if not learned:
            return metrics | {"undone": 1.0}
        self.updates += 1
        self._changed |= dict.fromkeys(learned, self.updates)
        return metrics

    def trace(self, trajectories: Mapping[str, Trajectory]) -> tuple[str, ...]:
        """Return the names of the metrics that `update` gives for such batches. Nothing is learned."""
        return tuple(
            f"{name}/{each}" for name, member in self.members.items() for each in member.trace(trajectories[name])
        )

    def write_checkpoint(self, folder: Path, earlier: Path | None, *, with_buffer: bool) -> Mapping[str, Entry]:
        """Write each learner into a folder of its own, `policies/<name>`; see `Learner.write_checkpoint`.

        Of a policy that doesn't learn, the network is there: where it came from may change.
        """
        for name in self._fixed:
            save = functools.partial(save_network, self.network.networks[name])
            write_folder_atomically(policy_folder(folder, name), save)
        for name, member in self.members.items():
            before = None if earlier is None else policy_folder(earlier, name)
            linked: dict[str, Entry] = {}
            write = functools.partial(_write, member, before, with_buffer, linked)
            write_folder_atomically(policy_folder(folder, name), write, linked)
        return {}


def _write(member: Learner, earlier: Path | None, with_buffer: bool, linked: dict[str, Entry], folder: Path) -> None:
    linked |= member.write_checkpoint(folder, earlier, with_buffer=with_buffer)
