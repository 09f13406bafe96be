"""Three agents that share a policy and a reward: cover all landmarks (Lowe et al. 2017, arXiv:1706.02275).

pip install 'actor-learner[games]', then: python examples/simple_spread.py [TOTAL_STEPS]
"""

import sys

import actor_learner as al

GAME = "mpe2.simple_spread_v3:parallel_env"


def main(total_steps: int = 1_000_000) -> float:
    config = al.TrainConfig(
        env=GAME,
        env_kwargs={"local_ratio": 0.0, "max_cycles": 25},
        algorithm=al.PPO(learning_rate="linear_7e-4", gamma=0.9, epochs=8, minibatch_size=600, normalize_reward=True),
        envs_per_actor=48,  # 16 games of 3 agents
        unroll_length=25,
        total_steps=total_steps,
    )
    result = al.train(config)
    return al.evaluate(result.run_dir, episodes=90, num_envs=9, seed=1).mean


if __name__ == "__main__":
    print("return of an agent:", main(*map(int, sys.argv[1:])))
