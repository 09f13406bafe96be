"""The rows of the table of learning results, each beside what others publish."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple


class Published(NamedTuple):
    """A published return. spread: Of seeds (0: a single run). steps: Env steps at which it was reached."""

    source: str
    value: float
    steps: int
    spread: float = 0.0

    def __str__(self) -> str:
        spread = f" +- {self.spread:g}" if self.spread else ""
        return f"{self.source} {self.value:g}{spread}"


@dataclass(frozen=True)
class Row:
    """A row of the table: each seed is `actor-learner train env --algorithm algorithm --seed N options`."""

    env: str
    algorithm: str
    seeds: int  # 0, 1, ...; presets were tuned on seeds from 100 on
    steps: int  # of a seed
    minutes: float  # of a seed on one core of the machine of the committed results
    published: tuple[Published, ...] = ()
    options: tuple[str, ...] = ()
    variant: str = ""  # distinguishes rows of the same environment and algorithm
    episodes: int = 20
    note: str = ""
    library: str = "ours"  # or "sb3", "sbx": benchmarks/learning/sb3_zoo.py

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

    @property
    def goal(self) -> Published | None:
        """The strongest return that others publish at as many steps; None if there is none."""
        known = [published for published in self.published if published.steps == self.steps]
        return max(known, key=lambda published: published.value, default=None)


M = 1_000_000
LAG_1 = {"options": ("--max-policy-lag", "1"), "variant": "lag 1", "seeds": 3}
ON_JAX = {"options": ("--backend", "jax"), "variant": "JAX", "seeds": 5}
NO_STICKY = ("--env-kwargs", '{"repeat_action_probability": 0.0}')
HALF_CHEETAH = (
    Published("SB3 Zoo (v3)", 5819, M),
    Published("Tianshou (v3, best of run)", 5784, M, 1244),
    Published("TF-Agents (v2)", 4239, M),
    Published("SB3 Zoo A2C (v3)", 3041, M),
    Published("CleanRL (v4)", 1443, M, 46),
)
HOPPER = (
    Published("Tianshou (v3, best of run)", 2609, M, 701),
    Published("TF-Agents (v2)", 2530, M),
    Published("SB3 Zoo (v3)", 2410, M),
    Published("CleanRL (v4)", 2383, M, 272),
)
WALKER_2D = (
    Published("Tianshou (v3, best of run)", 3589, M, 757),
    Published("SB3 Zoo (v3)", 3479, M),
    Published("TF-Agents (v2)", 2971, M),
    Published("CleanRL (v4)", 2288, M, 572),
)
EPISODES = "returns depend on where an episode begins, so 200 episodes a seed"
DELAY_32 = ("--env-kwargs", '{"delay": 32}', "--total-steps", "150000")
ATTENTION = ("--network", "benchmarks.learning.networks:attention_40")
ONE_FRAME = {"one frame, LSTM": ("--memory", "lstm"), "one frame": ()}
NO_VELOCITY = (Published("SB3-contrib's RecurrentPPO, a card", 500, 100_000),)
LUNAR_LANDER = (Published("SB3 Zoo (v2)", 242, M),)
V5_WALKER = "v5's feet have another friction than v3's and v4's"
MINATAR = "a tenth of the actions repeat the one before; gymnax's port, whose figures stand beside, repeats none"
V5_ANT = "the preset leaves out the contact forces that v5 observes, which were all 0 in v3; their cost stays"


WALKERS = ("HalfCheetah", "Hopper", "Walker2d")
THE_FIRST_100K = ("--total-steps", "100000")


def _sac(library: str) -> tuple[Row, ...]:
    """Return the rows of SAC on the walkers' first steps."""
    rows = (Row(f"{name}-v5", "sac", 3, 100_000, 25, variant="100k steps, " + library) for name in WALKERS)
    return tuple(dataclasses.replace(row, library=library) for row in rows)


def _minatar(game: str, published: float, algorithm: str = "ppo") -> Row:
    """Return the row of a MinAtar game. published: By PPO of gymnax-blines, which ports the game to JAX."""
    others = (Published("gymnax-blines PPO (JAX)", published, 10 * M),)
    return Row(f"MinAtar/{game}-v1", algorithm, 3, 5 * M, 5, others, note=MINATAR)


def _pong_in(precision: str) -> tuple[Row, ...]:
    """Return rows by which precisions are compared: a whole run, and the beginning of several."""
    options = (*NO_STICKY, "--max-policy-lag", "1", "--precision", precision)
    name, begins = f"{precision}, lag 1", (*options, "--total-steps", "500000")
    return (
        Row("ALE/Pong-v5", "ppo", 1, 875_000, 40, (), options, name, episodes=5),
        Row("ALE/Pong-v5", "ppo", 3, 500_000, 25, (), begins, f"{name}, 500k steps", episodes=5),
    )


def _memory(variant: str, steps: int, *options: str) -> Row:
    """Return a row of the task that needs a memory."""
    return Row("actor_learner/Memory-v0", "ppo", 3, steps, 1, (), options, variant)


def _one_frame(variant: str, *options: str) -> Row:
    """Return a row of Pong as it is seen in one frame, which shows no motion: beside it, four frames."""
    frames = ("--env-kwargs", '{"repeat_action_probability": 0.0, "stack_num": 1}')
    return Row("ALE/Pong-v5", "ppo", 1, 875_000, 50, (), (*frames, *options), variant, episodes=5)


ROWS = (
    Row(
        "CartPole-v1",
        "ppo",
        10,
        100_000,
        0.3,
        (Published("SB3 Zoo", 500, 100_000), Published("CleanRL", 490, M // 2, 6.1)),
    ),
    Row("Acrobot-v1", "ppo", 10, M, 1.2, (Published("SB3 Zoo", -73.5, M), Published("CleanRL", -86.4, M // 2, 1.3))),
    Row("MountainCar-v0", "ppo", 10, M, 1.8, (Published("SB3 Zoo", -110, M), Published("CleanRL", -200, M // 2))),
    Row(
        *("MountainCarContinuous-v0", "ppo", 10, 100_000, 0.3),
        (Published("SB3 Zoo A2C", 91.2, 100_000), Published("SB3 Zoo", 88.3, 20_000)),
    ),
    Row(
        *("Pendulum-v1", "ppo", 10, 100_000, 0.3),
        (Published("SB3 Zoo", -172, 100_000), Published("SB3 Zoo A2C", -163, M)),
        episodes=200,
        note=EPISODES,
    ),
    Row("LunarLander-v3", "ppo", 10, M, 1.5, LUNAR_LANDER),
    Row("LunarLander-v3", "ppo", steps=M, minutes=1.5, published=LUNAR_LANDER, **LAG_1),
    Row("LunarLanderContinuous-v3", "ppo", 5, M, 5, (Published("SB3 Zoo (v2)", 271, M),)),
    Row("HalfCheetah-v5", "ppo", 10, M, 2, HALF_CHEETAH),
    Row("HalfCheetah-v5", "ppo", steps=M, minutes=2, published=HALF_CHEETAH, **LAG_1),
    Row("Hopper-v5", "ppo", 5, M, 3, HOPPER),
    Row("Hopper-v5", "ppo", steps=M, minutes=3, published=HOPPER, **LAG_1),
    Row("Walker2d-v5", "ppo", 5, M, 5, WALKER_2D, note=V5_WALKER),
    Row("Walker2d-v5", "ppo", steps=M, minutes=5, published=WALKER_2D, **LAG_1),
    Row(
        *("Ant-v5", "ppo", 5, M, 6),
        (Published("Tianshou (v3, best of run)", 3258, M, 1079), Published("SB3 Zoo (v3)", 1327, M)),
        note=V5_ANT,
    ),
    Row("Humanoid-v5", "ppo", 3, M, 10, (Published("Tianshou (v3, best of run)", 787, M, 194),)),
    Row("Swimmer-v5", "ppo", 5, M, 2.3, (Published("SB3 Zoo (v3)", 282, M),)),
    Row(
        "BipedalWalker-v3",
        "ppo",
        3,
        5 * M,
        15,
        (Published("SB3 Zoo", 288, 5 * M), Published("SB3 Zoo A2C", 300, 5 * M)),
    ),
    Row("CartPole-v1", "a2c", 10, M // 2, 1, (Published("SB3 Zoo", 500, M // 2),)),
    Row("Acrobot-v1", "a2c", 10, M // 2, 1.7, (Published("SB3 Zoo", -83.4, M // 2),)),
    Row("CartPole-v1", "impala", 10, 300_000, 0.5),
    Row("LunarLander-v3", "impala", 5, 3 * M, 5),
    Row("actor_learner/Catch-v0", "ppo", 10, 30_000, 0.5),
    _minatar("Asterix", 15),
    _minatar("Breakout", 28),
    _minatar("SpaceInvaders", 131),
    _minatar("Breakout", 28, "impala"),
    Row("ALE/Pong-v5", "ppo", 1, 875_000, 40, episodes=5),
    Row("ALE/Pong-v5", "ppo", 1, 875_000, 40, (), NO_STICKY, "not sticky", episodes=5),
    Row(
        *("ALE/Breakout-v5", "ppo", 1, M, 40, (Published("CleanRL", 414.7, 10 * M, 28.1),)),
        (*NO_STICKY, "--total-steps", str(M), "--learning-rate", "2.5e-4", "--clip-range", "0.1"),
        "not sticky",
        episodes=5,
        note="a tenth of CleanRL's steps, with the rates that fall to 0 over all of them held",
    ),
    Row("CartPole-v1", "ppo", steps=100_000, minutes=0.3, published=(Published("SB3 Zoo", 500, 100_000),), **ON_JAX),
    Row("LunarLander-v3", "ppo", steps=M, minutes=1.5, published=LUNAR_LANDER, **ON_JAX),
    Row("HalfCheetah-v5", "ppo", steps=M, minutes=2, published=HALF_CHEETAH, **ON_JAX),
    *(row for precision in ("float32", "bfloat16") for row in _pong_in(precision)),
    Row("actor_learner/CartPoleNoVelocity-v0", "ppo", 5, 100_000, 0.9, NO_VELOCITY),
    Row("actor_learner/PendulumNoVelocity-v0", "ppo", 3, 100_000, 0.9, episodes=200, note=EPISODES),
    Row("actor_learner/MountainCarContinuousNoVelocity-v0", "ppo", 3, 300_000, 2),
    Row("actor_learner/LunarLanderNoVelocity-v0", "ppo", 3, M, 4),
    Row("actor_learner/Memory-v0", "ppo", 5, 100_000, 0.4, note="delay 8; at random .25"),
    _memory("without memory", 100_000, "--memory", "none"),
    _memory("delay 32, LSTM", 150_000, *DELAY_32, "--memory", "lstm"),
    _memory("delay 32, attention", 150_000, *DELAY_32, "--memory", "none", *ATTENTION),
    Row("actor_learner/Memory-v0", "impala", 3, 100_000, 0.5, note="delay 8, LSTM, lag 4"),
    *(_one_frame(name, *options) for name, options in ONE_FRAME.items()),
    Row("CartPole-v1", "dqn", 5, 50_000, 0.6, (Published("SB3 Zoo", 500, 50_000),)),
    Row("LunarLander-v3", "dqn", 3, 100_000, 2.5, (Published("SB3 Zoo (v2)", 154, 100_000),)),
    Row("MountainCar-v0", "dqn", 3, 120_000, 1.5, (Published("SB3 Zoo", -101, 120_000),)),
    Row("Acrobot-v1", "dqn", 3, 100_000, 2.5, (Published("CleanRL", -92, M // 2),)),
    Row("Pendulum-v1", "sac", 5, 10_000, 1.3, (Published("SB3 Zoo", -157, 20_000),), ("--total-steps", "10000")),
    Row("MountainCarContinuous-v0", "sac", 3, 50_000, 5, (Published("SB3 Zoo", 94, 50_000),)),
    *(Row(f"{name}-v5", "sac", 3, 100_000, 13, (), THE_FIRST_100K, "100k steps") for name in (*WALKERS, "Ant")),
    Row("BipedalWalker-v3", "sac", 1, M // 2, 65, (Published("SB3 Zoo", 298, M // 2),)),
    Row(
        *("ALE/Pong-v5", "dqn", 1, 400_000, 60, ()),
        (*NO_STICKY, "--total-steps", "400000", "--learning-starts", "10000"),
        "not sticky",
        episodes=5,
        note="the first 69 minutes of a run of 400,000 steps, on a shared core, still rising",
    ),
    Row("HalfCheetah-v5", "sac", 1, M, 130, (Published("SB3 Zoo (v3)", 9535, M),)),
    Row("MinAtar/Breakout-v1", "dqn", 3, M, 8, (Published("MinAtar's DQN, as mechagogue ran it", 11.1, M),)),
    *_sac("sb3"),
    *_sac("sbx"),
    Row("CartPole-v1", "ppo", 3, 100_000, 0.5, variant="sb3", library="sb3"),
    Row("LunarLander-v3", "ppo", 3, M, 25, variant="sb3", library="sb3"),
    Row("HalfCheetah-v5", "ppo", 2, M, 20, variant="sb3", library="sb3"),
    Row("actor_learner/CartPoleNoVelocity-v0", "ppo", 5, 100_000, 4, variant="sb3", library="sb3"),
    Row("actor_learner/PendulumNoVelocity-v0", "ppo", 3, 100_000, 5, variant="sb3", episodes=200, library="sb3"),
    Row("actor_learner/MountainCarContinuousNoVelocity-v0", "ppo", 3, 300_000, 12, variant="sb3", library="sb3"),
    Row("actor_learner/LunarLanderNoVelocity-v0", "ppo", 3, M, 40, variant="sb3", library="sb3"),
)
