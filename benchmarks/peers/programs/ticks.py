"""A callback of Stable-Baselines3 that notes its updates."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.peers.programs.clock import Clock


class Ticks(BaseCallback):
    """Ticks when a rollout starts: the update before it has ended. Ends the training when the clock has enough."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.tick()

    def _on_step(self) -> bool:
        return not self._clock.enough

    def tick(self) -> None:
        """Note an update, and the mean return of the last 100 episodes if a monitor has seen so many."""
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        self._clock.tick(self.num_timesteps, sum(returns) / 100 if len(returns) == 100 else None)
