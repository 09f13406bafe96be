"""Metrics for Weights & Biases."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from actor_learner.callbacks.base import Callback
from actor_learner.system.installation import install_command


class WandB(Callback):
    """Logs each update to Weights & Biases, over env steps, with the run's config.

    Args:
        project: Name of the project there.
        settings: Further arguments of `wandb.init`, for instance `mode="offline"`, `name`, `group`. The default name is
            that of the run's directory; wandb's own files are written there, too.

    Raises:
        ImportError: wandb isn't installed.
    """

    _unfinished: ClassVar[Any] = None  # wandb's run of a training that has not ended, or that an exception ended

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        super().__init__()
        if importlib.util.find_spec("wandb") is None:
            raise ImportError(f"WandB needs wandb: {install_command('actor-learner[wandb]')}")
        self.project, self.settings = project, settings
        self._run: Any = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        import wandb

        folder = Path(self.run_dir)
        settings = {"dir": str(folder), "name": folder.name, "config": self.config.to_json()} | self.settings
        if WandB._unfinished is not None:
            WandB._unfinished.finish(exit_code=1)  # wandb.init would return it
        ours = wandb.run is None
        self._run = wandb.init(project=self.project, **settings)
        WandB._unfinished = self._run if ours else None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._run.log(dict(logs or {}), step=self.learner.steps)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self._run.finish()
        WandB._unfinished = None
