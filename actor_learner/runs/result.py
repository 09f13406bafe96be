"""What a training run returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Result:
    """The trained network, the metrics of the run's last update, and its directory.

    If a callback stops training before the first update, there are no metrics, and no run is kept.
    """

    network: keras.Model
    metrics: dict[str, float]
    run_dir: Path

    def __repr__(self) -> str:
        shown = {name: self.metrics[name] for name in ("env_steps", "episode_return") if name in self.metrics}
        figures = "".join(f", {name}={value:.6g}" for name, value in shown.items())
        return f"Result(run_dir={str(self.run_dir)!r}{figures})"
