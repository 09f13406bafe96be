"""Environments shipped with actor_learner, installed as `actor_learner_envs`.

Importing this package registers them with Gymnasium under the namespace `actor_learner/`; `actor_learner` imports it
for such an id. Entry points are strings: making an environment imports its module.

- `actor_learner/Catch-v0`: the smallest task from pixels, and the model to copy for your own environment, single and
  vector.
- `actor_learner/MaskedTreasure-v0`: needs action masks. At most four of 64 actions are legal; the masks come in `info`
  or in a dict observation (`mask_in`).
- `actor_learner/Memory-v0`: needs a memory. A cue comes first, the question last; without memory a policy stays at
  chance.
- `actor_learner/BitFlipping-v0`: needs hindsight. Flip the bits (`bits`, 12) until they are those of a goal.
- `actor_learner/PointReach-v0`: a point moves in a square to a goal; the smallest goal environment with continuous
  actions, learned without hindsight, too.
- `actor_learner/CartPoleNoVelocity-v0`, `actor_learner/PendulumNoVelocity-v0`,
  `actor_learner/LunarLanderNoVelocity-v0`, `actor_learner/MountainCarContinuousNoVelocity-v0`: Gymnasium's own without
  the velocities, which a policy with memory finds out from one step to the next.
- `actor_learner/Latency-v0`: waits like simulators: long (`step_time`), unevenly (`tail`), or much longer in some
  actors than in others (`slow_fraction`, `slow_factor`). For measurements of scaling.

`Catch-v0` and `Latency-v0` have their own vector environment, in autoreset mode DISABLED, which costs no step at an
episode's end: `reset(options={"reset_mask": mask})` restarts those that ended.
"""

from __future__ import annotations

import gymnasium as gym

gym.register(
    id="actor_learner/Catch-v0",
    entry_point="actor_learner_envs.catch:CatchEnv",
    vector_entry_point="actor_learner_envs.catch:CatchVectorEnv",
    reward_threshold=0.95,
)
gym.register(
    id="actor_learner/MaskedTreasure-v0",
    entry_point="actor_learner_envs.masked_treasure:MaskedTreasureEnv",
    max_episode_steps=50,
    reward_threshold=0.8,
)
gym.register(
    id="actor_learner/Memory-v0",
    entry_point="actor_learner_envs.memory:MemoryEnv",
    reward_threshold=0.95,
)
gym.register(
    id="actor_learner/BitFlipping-v0",
    entry_point="actor_learner_envs.goals:BitFlippingEnv",
)
gym.register(
    id="actor_learner/PointReach-v0",
    entry_point="actor_learner_envs.goals:PointReachEnv",
    max_episode_steps=25,
)
gym.register(
    id="actor_learner/Latency-v0",
    entry_point="actor_learner_envs.latency:LatencyEnv",
    vector_entry_point="actor_learner_envs.latency:LatencyVectorEnv",
    reward_threshold=19.0,
)


def _register_without_velocity(gymnasium_id: str) -> None:
    spec = gym.spec(gymnasium_id)
    gym.register(
        id=f"actor_learner/{gymnasium_id.rpartition('-')[0]}NoVelocity-v0",
        entry_point="actor_learner_envs.velocity:make",
        kwargs={"env_id": gymnasium_id},
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
    )


for _id in ("CartPole-v1", "Pendulum-v1", "LunarLander-v3", "MountainCarContinuous-v0"):
    _register_without_velocity(_id)
