"""The simplest thing to learn: repeat the observation. As in Stable-Baselines3's tests."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from actor_learner.spaces import structure


class IdentityEnv(gym.Env):
    """Observations are samples of the action space; a step that repeats its observation earns 1.

    Discrete leaves earn the share of entries that are right, Boxes 1 - the mean distance; leaves are averaged. With
    `masked`, the choice after the right one is forbidden where it isn't the last (a Discrete action space alone).
    """

    def __init__(self, space, length=10, masked=False):
        self.action_space = space
        self._structure = structure.action_structure(space)
        self._length, self._masked = length, masked
        self.observation_space = Dict(seen=space, action_mask=Box(0, 1, (space.n,), np.int8)) if masked else space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self._steps = 0
        self._seen = self.action_space.sample()
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        if self._masked:
            assert self._mask()[action]
        pairs = zip(self._structure.flatten(action), self._structure.flatten(self._seen), strict=True)
        reward = np.mean([self._match(did, seen) for did, seen in pairs])
        self._seen = self.action_space.sample()
        self._steps += 1
        return self._observation(), float(reward), False, self._steps == self._length, {}

    def _match(self, did, seen):
        if np.asarray(seen).dtype.kind == "f":
            return 1.0 - np.abs(did - seen).mean()
        return np.mean(np.equal(did, seen))

    def _mask(self):
        mask = np.ones(self.action_space.n, np.int8)
        mask[min(self._seen + 1, self.action_space.n) :][:1] = 0
        return mask

    def _observation(self):
        return {"seen": self._seen, "action_mask": self._mask()} if self._masked else self._seen
