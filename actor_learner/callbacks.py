"""Callbacks: Keras's own work as they are; `Callback` adds what a reinforcement-learning run has to offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from actor_learner.config import TrainConfig
    from actor_learner.learner import Learner
    from actor_learner.pool import ActorPool


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback that knows the run's `actors`, `learner` and `config`.

    A batch is an update; `logs` carry the metrics of metrics.jsonl. `self.model` is the network, and
    `self.model.stop_training = True` ends the run after the current update.
    """

    actors: ActorPool
    learner: Learner
    config: TrainConfig


def check_callbacks(callbacks: Any) -> None:
    """Raises ValueError unless every one is a Keras callback."""
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise ValueError(
                f"`callbacks` must hold keras.callbacks.Callback objects. Received: {callback!r} "
                f"of type {type(callback).__name__}"
            )


def callback_list(
    callbacks: Any, *, actors: ActorPool, learner: Learner, config: TrainConfig, params: dict[str, Any]
) -> keras.callbacks.CallbackList:
    """Keras's own list of these callbacks, each told about the run."""
    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.actors, callback.learner, callback.config = actors, learner, config
    result = keras.callbacks.CallbackList(list(callbacks), model=learner.network)
    result.set_params(params)
    learner.network.stop_training = False
    return result
