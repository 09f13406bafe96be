"""The compared libraries: ours at two lags, and the peers, each with its abilities."""

from __future__ import annotations

from benchmarks.peers.runs import Peer
from benchmarks.works import WORKS, Work

FOUR = tuple(WORKS)
OWN_WORKS: dict[str, Work] = {
    # Sample Factory's own best on two cores: 2 workers x 16 environments.
    "cartpole32": Work("CartPole-v1", 32, 32, 1024, 4, 400),
}
_OURS = {"worker": r"\bactor-\d+", "works": (*FOUR, *OWN_WORKS), "clock": "`time_seconds` of metrics.jsonl"}
_SB3 = {
    "works": FOUR,
    "worker": r"multiprocessing.forkserver",
    "with_processes": True,
    "clock": "callback at the start of each rollout",
}
_ENVPOOL = {"works": FOUR, "clock": "the end of each update"}
_ONE_THREAD = ({"threads": 1},)

OURS: dict[str, Peer] = {
    f"lag{lag}": Peer(f"ours, lag {lag}", "ours", None, options={"lag": lag}, **_OURS) for lag in (0, 1)
}
PEERS: dict[str, Peer] = {
    "sb3": Peer("SB3", "sb3", "sb3", ("stable-baselines3", "torch"), options={"peer": "sb3"}, **_SB3),
    "sbx": Peer("SBX", "sb3", "sb3", ("sbx-rl", "jax"), options={"peer": "sbx"}, **_SB3),
    "sample_factory": Peer(
        *("Sample Factory", "sample_factory", "sample_factory", ("sample-factory", "torch")),
        works=("cartpole", "cartpole64", *OWN_WORKS),
        options={"workers": 2},
        settings=_ONE_THREAD,  # it sets one thread itself
        note="2 workers, rollouts of at most a minibatch, a batch collected while the one before is learned",
        worker=r"multiprocessing.spawn",
        clock="observer's call after each iteration",
    ),
    "pufferlib": Peer(
        *("PufferLib", "pufferlib_ppo", "pufferlib", ("pufferlib", "torch")),
        works=FOUR,
        clock="the return of `train()`",
        note="pieces of at most 64 steps or a quarter of a minibatch; at two threads two processes of environments",
        solves=False,  # its settings are for CartPole-v0 with clipped observations
    ),
    "cleanrl": Peer("CleanRL's way, EnvPool", "cleanrl", "cleanrl", ("torch", "envpool"), **_ENVPOOL),
    "cleanrl_jax": Peer(
        *("CleanRL's way, EnvPool, JAX", "cleanrl_jax", "cleanrl_jax", ("jax", "flax", "envpool")), **_ENVPOOL
    ),
    "rllib": Peer(
        *("RLlib", "rllib", "rllib", ("ray", "torch")),
        works=("cartpole",),
        options={"workers": 2},
        settings=_ONE_THREAD,  # a run takes long, and its network is small
        worker=r"^ray::SingleAgentEnvRunner",
        deadline=300.0,
        clock="the return of `Algorithm.train`",
        note="2 env runners",
    ),
}
