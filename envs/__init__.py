"""Environments shipped with actor_learner, installed as `actor_learner_envs`.

Importing this package registers them with Gymnasium under the namespace `actor_learner/`; entry points are strings, so
that an environment's own module is imported only when it is made.
"""

from __future__ import annotations

import gymnasium as gym

gym.register(
    id="actor_learner/Catch-v0",
    entry_point="actor_learner_envs.catch:CatchEnv",
    vector_entry_point="actor_learner_envs.catch:CatchVectorEnv",
    reward_threshold=0.95,
)
