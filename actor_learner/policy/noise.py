"""The noise that actions are sampled with: uniforms and standard normals, the latter held for several steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from actor_learner.algorithms.exploration import Process
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.system.types import Array

Seed = int | np.random.SeedSequence | None
_MAX_STEPS_AHEAD, _MAX_NUMBERS_AHEAD = 64, 2**18
"""The most that are drawn ahead, because a call of a generator costs more than a number."""
_MAX_STREAMS = 4096
_STREAM_OF_ALL = 2**31
"""The number of the stream of numbers that are the same for all rows."""


class Noise:
    """Draws `[rows, U + N]`: `noise_uniform` uniforms in (0, 1], then `noise_normal` standard normals.

    Row i has a random stream of its own, number `first_stream + i` of the seed: so an environment gets the same noise
    whichever actor steps it, and whichever others are stepped with it. Rows from 4,096 on share one stream.

    Each environment keeps its normals for `noise_hold` steps; its uniforms are new at every step. The normals of one
    step are standard normal, but not given the state, to which the held ones have led.

    For a network that draws numbers itself, a last column follows: a uniform, the same in all rows of all actors.

    With a ladder of epsilons over `streams` environments, the uniform u by which row i explores is u ** (1 / k), which
    is below epsilon as often as u is below epsilon ** k.

    exploration: its processes, one for each row, take the place of the standard normals.
    """

    def __init__(
        self,
        exported: ExportedPolicy,
        seed: Seed,
        first_stream: int = 0,
        streams: int = 1,
        exploration: Process | None = None,
    ) -> None:
        self._uniform, self._normal = exported.noise_uniform, exported.noise_normal
        self._width, self._draws = exported.noise_columns, exported.draws
        self._hold, self._first_stream = exported.noise_hold, first_stream
        self._is_greedy = exported.distribution == "greedy"
        self._ladder = exported.epsilon_ladder / (streams - 1) if streams > 1 else 0.0
        self._exploration = exploration
        self.reseed(seed)

    def reseed(self, seed: Seed) -> None:
        """Restarts the streams from `seed` and forgets the held normals."""
        self._sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._streams: list[tuple[Any, Any]] = []
        self._of_all, self._last = self._new_stream(_STREAM_OF_ALL)[0], np.float32(0)
        self._ahead, self._step = np.empty((0, 0, self._width), np.float32), 0
        self._held, self._ages = np.empty((0, self._normal), np.float32), np.empty(0, np.int64)
        self._processes: list[Iterator[Any]] = []

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
        """Make the next draw new for `rows` (bool [N]; None: all)."""
        self._ages[... if rows is None or len(rows) != len(self._ages) else rows] = self._hold

    def draw(self, rows: int, start: Array | None = None) -> Array:
        """Draws for `rows` environments, into memory that later draws overwrite.

        start: Bool [N], True where an episode starts; None: nowhere.
        """
        if self._step == len(self._ahead) or rows > self._ahead.shape[1]:
            self._draw_ahead(rows)
        drawn: Array = self._ahead[self._step, :rows]
        self._step += 1
        if self._exploration is not None:
            self._explore(self._exploration, drawn[:, self._uniform : self._uniform + self._normal], start)
        if self._hold > 1:
            self._hold_normals(drawn[:, self._uniform : self._uniform + self._normal])
        if self._draws:
            self._last = drawn[0, -1]
        return drawn

    def of_generators(self, generators: Sequence[np.random.Generator], *, explore: bool) -> Array:
        """Return a draw in which each row comes from a generator of its own, without ladder or held normals.

        explore: False: a policy with epsilon takes its best action. Of a network that draws numbers itself, all rows
        have that of the first generator.
        """
        drawn = np.zeros((len(generators), self._width), np.float32)
        for row, generator in zip(drawn, generators, strict=True):
            row[: self._uniform] = np.float32(1) - generator.random(self._uniform, np.float32)
            row[self._uniform : self._uniform + self._normal] = generator.standard_normal(self._normal, np.float32)
        if self._is_greedy and not explore:
            drawn[:, 0] = 1.0
        if self._draws:
            drawn[:, -1] = np.float32(1) - generators[0].random(dtype=np.float32)
        return drawn

    def zeros(self, rows: int) -> Array:
        """Return zeros in place of a draw, with the last draw's number of all rows."""
        zeros = np.zeros((rows, self._width), np.float32)
        if self._draws:
            zeros[:, -1] = self._last
        return zeros

    def _explore(self, process: Process, normals: Array, start: Array | None) -> None:
        """Write the next step of each row's process. It begins anew with an episode, and where it has ended."""
        self._processes += [iter(()) for _ in range(len(normals) - len(self._processes))]
        for row, drawn in enumerate(normals):
            value = None if start is not None and start[row] else next(self._processes[row], None)
            if value is None:
                generator = self._streams[min(row, _MAX_STREAMS)][1]
                self._processes[row] = iter(process(generator, self._normal))
                value = next(self._processes[row])
            drawn[...] = value

    def _hold_normals(self, normals: Array) -> None:
        """Replace normals by those that are still held, and hold the others."""
        if len(self._held) != len(normals):
            self._held, self._ages = np.empty_like(normals), np.full(len(normals), self._hold)
        due = self._ages >= self._hold
        self._held[due] = normals[due]
        self._ages[due] = 0
        self._ages += 1
        normals[...] = self._held

    def _draw_ahead(self, rows: int) -> None:
        """Draws for the next steps. For rows that are new, it draws beside what others have left."""
        left = self._ahead[self._step :]
        known = left.shape[1] if len(left) else 0
        rows = max(rows, self._ahead.shape[1])
        steps = len(left) or max(1, min(_MAX_STEPS_AHEAD, _MAX_NUMBERS_AHEAD // max(1, rows * self._width)))
        self._ahead, self._step = np.empty((steps, rows, self._width), np.float32), 0
        if known:
            self._ahead[:, :known] = left
        while len(self._streams) < min(rows, _MAX_STREAMS + 1):
            self._streams.append(self._new_stream(self._first_stream + len(self._streams)))
        for row in range(known, min(rows, _MAX_STREAMS)):
            self._fill(self._ahead[:, row : row + 1], self._streams[row])
        if rows > _MAX_STREAMS:
            self._fill(self._ahead[:, max(known, _MAX_STREAMS) :], self._streams[_MAX_STREAMS])
        if self._ladder:
            environment = self._first_stream + np.arange(known, rows)
            self._ahead[:, known:, 0] **= np.float32(1) / (1 + self._ladder * environment).astype(np.float32)
        if self._draws:
            of_all = left[:, :1, -1] if known else np.float32(1) - self._of_all.random((steps, 1), np.float32)
            self._ahead[..., -1] = of_all

    def _new_stream(self, number: int) -> tuple[Any, Any]:
        """Return a stream's generators of uniforms and of normals: two, so that steps may be drawn in any portions."""
        key = (*self._sequence.spawn_key, number)
        parts = np.random.SeedSequence(self._sequence.entropy, spawn_key=key).spawn(2)
        # Named, because NumPy may change the generator behind default_rng.
        uniform, normal = (np.random.Generator(np.random.PCG64(part)) for part in parts)
        return uniform, normal

    def _fill(self, block: Array, stream: tuple[Any, Any]) -> None:
        uniform, normal = stream
        steps, rows, _ = block.shape
        if self._uniform:  # random() is in [0, 1); sampling needs (0, 1]
            block[..., : self._uniform] = np.float32(1) - uniform.random((steps, rows, self._uniform), np.float32)
        if self._normal and self._exploration is None:
            block[..., self._uniform : self._uniform + self._normal] = normal.standard_normal(
                (steps, rows, self._normal), np.float32
            )
