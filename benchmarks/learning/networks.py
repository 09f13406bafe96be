"""Networks of rows of the table that no flag makes."""

from __future__ import annotations

from typing import Any

import actor_learner as al


def attention_40(observation_space: Any, action_space: Any) -> Any:
    """Return a network that attends to the last 40 steps, a few more than lie between cue and question."""
    import keras

    observation = keras.Input(observation_space.shape)
    hidden = keras.layers.Dense(64, activation="tanh")(observation)
    hidden = al.AttentionMemory(window=40, heads=4, size=64)(hidden)
    logits = keras.layers.Dense(al.parameter_size(action_space))(hidden)
    return keras.Model(observation, (logits, keras.layers.Dense(1)(hidden)))
