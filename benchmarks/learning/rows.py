"""The rows of the table of learning results: environment, algorithm, seeds, and what others publish."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row of the table: each seed is `actor-learner train env --algorithm algorithm --seed N options`."""

    env: str
    algorithm: str
    seeds: int
    """Seeds 0, 1, ...; presets were tuned on seeds from 100 on."""
    goal: float
    """The target for the mean of the deterministic evaluations."""
    published: str
    minutes: float
    """Minutes of one seed on one core of the machine of the committed results."""
    options: tuple[str, ...] = ()
    variant: str = ""
    """Distinguishes rows of the same environment and algorithm."""
    episodes: int = 20

    @property
    def name(self) -> str:
        """The name for `--only`."""
        return "/".join(filter(None, (self.env, self.algorithm, self.variant)))

    @property
    def slug(self) -> str:
        """The name of the row's files."""
        return self.name.lower().replace("/", "-").replace(" ", "-")

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of `actor-learner`, without the seed."""
        return ("train", self.env, "--algorithm", self.algorithm, *self.options)


NO_STICKY = ("--env-kwargs", '{"repeat_action_probability": 0.0}')

ROWS = (
    Row("CartPole-v1", "ppo", 3, 500, "SB3 Zoo 500 (100k); CleanRL 490.0 +- 6.1 (500k)", 0.3),
    Row("Acrobot-v1", "ppo", 3, -83, "SB3 Zoo -73.5 (1M); CleanRL -86.4 +- 1.3 (500k)", 1),
    Row("MountainCar-v0", "ppo", 3, -115, "SB3 Zoo -110 (1M); CleanRL -200 (500k)", 1),
    Row("MountainCarContinuous-v0", "ppo", 3, 88, "SB3 Zoo 88.3 (20k)", 0.3),
    Row("Pendulum-v1", "ppo", 3, -180, "SB3 Zoo -172 (100k)", 0.3),
    Row("LunarLander-v3", "ppo", 3, 242, "SB3 Zoo 242 (v2, 1M)", 1.2),
    Row("LunarLanderContinuous-v3", "ppo", 3, 250, "SB3 Zoo 271 (v2, 1M)", 1.2),
    Row("HalfCheetah-v5", "ppo", 3, 3041, "SB3 Zoo 5819 (v3, 1M); CleanRL 1443 +- 46 (v4, 1M); TF-Agents 4239", 2),
    Row("Hopper-v5", "ppo", 3, 2410, "SB3 Zoo 2410 (v3, 1M); CleanRL 2383 +- 272 (v4, 1M); TF-Agents 2530", 2.7),
    Row("Walker2d-v5", "ppo", 3, 2288, "SB3 Zoo 3479 (v3, 1M); CleanRL 2288 +- 572 (v4, 1M); TF-Agents 2971", 3.5),
    Row("Swimmer-v5", "ppo", 2, 250, "SB3 Zoo 282 (v3, 1M)", 2),
    Row("BipedalWalker-v3", "ppo", 2, 280, "SB3 Zoo 288 (5M)", 15),
    Row("CartPole-v1", "a2c", 3, 500, "SB3 Zoo 500 (500k)", 1),
    Row("Acrobot-v1", "a2c", 3, -86, "SB3 Zoo -83.4 (500k)", 1),
    Row("LunarLander-v3", "a2c", 5, 156, "SB3 Zoo 155.8 (v2, 200k); SB3 here, as in the Zoo: 16.2 +- 38.0", 0.5),
    Row("CartPole-v1", "impala", 3, 475, "", 0.5),
    Row("LunarLander-v3", "impala", 3, 200, "", 5),
    Row("actor_learner/Catch-v0", "ppo", 3, 0.95, "", 0.5),
    Row("ALE/Pong-v5", "ppo", 1, -10, "20.4 to 21.0 (10M)", 40, episodes=5),
    Row("ALE/Pong-v5", "ppo", 1, -10, "20.4 to 21.0 (10M)", 40, NO_STICKY, "not sticky", episodes=5),
)
