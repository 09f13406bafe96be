"""The noise that actions are sampled with: uniforms and standard normals, the latter held for several steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from actor_learner.policy.exported import Array, ExportedPolicy

Seed = int | np.random.SeedSequence | None


class Noise:
    """Draws `[rows, U + N]`: `noise_uniform` uniforms in (0, 1], then `noise_normal` standard normals.

    Each environment keeps its normals for `noise_hold` steps; its uniforms are new at every step. The normals of one
    step are standard normal, but not given the state, to which the held ones have led.
    """

    def __init__(self, exported: ExportedPolicy, seed: Seed) -> None:
        self._uniform, self._normal = exported.noise_uniform, exported.noise_normal
        self._hold = exported.noise_hold
        self._plain = not (self._uniform and self._normal) and self._hold == 1
        shape = (exported.batch_size, self._uniform + self._normal)
        self._draws, self._batch = np.empty(shape, np.float32), np.zeros(shape, np.float32)
        self.reseed(seed)

    def reseed(self, seed: Seed) -> None:
        """Restarts the generator from `seed` and forgets the held normals."""
        # Named, because NumPy may change the generator behind default_rng.
        self._generator: Any = np.random.Generator(np.random.PCG64(seed))
        self.renew()

    @contextlib.contextmanager
    def reseeded(self, seed: Seed) -> Iterator[None]:
        """Draws from `seed` while entered; afterwards generator and held normals are what they were before."""
        before = vars(self).copy()  # `reseed` replaces them, so none of these objects changes meanwhile
        self.reseed(seed)
        try:
            yield
        finally:
            vars(self).update(before)

    def renew(self, rows: Array | None = None) -> None:
        """Makes the next draw new for `rows` (bool [N]; None: all)."""
        if rows is None:
            self._held = np.empty((0, self._normal), np.float32)
        elif len(self._held):
            self._ages[rows] = self._hold

    def draw_batch(self) -> Array:
        """Draws for `batch_size` environments, into memory that the next draw overwrites."""
        if not self._plain:
            return self.draw(len(self._batch))
        if self._uniform:
            # random() is in [0, 1); sampling needs (0, 1].
            self._generator.random(None, np.float32, self._draws)
            return np.subtract(1.0, self._draws, self._batch)
        drawn: Array = self._generator.standard_normal(None, np.float32, self._batch)
        return drawn

    def draw(self, rows: int) -> Array:
        parts: list[Array] = []
        if self._uniform:
            parts.append(np.float32(1) - self._generator.random((rows, self._uniform), np.float32))
        if self._normal:
            parts.append(self._draw_held(rows) if self._hold > 1 else self._draw_normal(rows))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _draw_normal(self, rows: int) -> Array:
        drawn: Array = self._generator.standard_normal((rows, self._normal), np.float32)
        return drawn

    def _draw_held(self, rows: int) -> Array:
        if len(self._held) != rows:
            self._held = np.empty((rows, self._normal), np.float32)
            self._ages = np.full(rows, self._hold)
        due = self._ages >= self._hold
        self._held[due] = self._draw_normal(int(due.sum()))
        self._ages[due] = 0
        self._ages += 1
        return self._held
