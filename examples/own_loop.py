"""Pool and learner in a loop of your own: train until the last episodes are good enough, then save and evaluate.

python examples/own_loop.py [TOTAL_STEPS]
"""

import sys
from collections import deque

import actor_learner as al

GOOD_ENOUGH = 475.0  # mean return of the last 100 episodes, at which CartPole-v1 counts as solved


def main(total_steps: int = 200_000) -> float:
    last = deque(maxlen=100)
    with al.ActorPool("CartPole-v1", num_actors=2, envs_per_actor=8, unroll_length=64) as actors:
        algorithm = al.PPO(learning_rate=1e-3, gamma=0.98, minibatch_size=256)
        learner = al.Learner(actors.network, algorithm, action_space=actors.action_space)
        while learner.env_steps < total_steps:
            trajectory = actors.collect(timeout=60)  # al.Trajectory: views on shared memory, [T, B]
            metrics = learner.update(trajectory)  # one compiled graph
            actors.publish(learner.get_weights())  # the actors' next unroll uses them
            last.extend(actors.episodes["return"])
            mean = sum(last) / max(1, len(last))
            print(f"{learner.env_steps:>7} steps  return {mean:6.1f}  entropy {metrics['entropy']:.3f}")
            if len(last) == last.maxlen and mean >= GOOD_ENOUGH:
                break
    learner.save("own-loop")  # al.Learner.load("own-loop") restores it
    return al.evaluate(learner.network, env="CartPole-v1", episodes=20, seed=1).mean


if __name__ == "__main__":
    print("return of the saved network:", main(*map(int, sys.argv[1:])))
