"""Population-based training (arXiv:1711.09846) over several learners: the worst copies the best and changes its rate.

python examples/population.py [TOTAL_STEPS of each member] [MEMBERS]
"""

import contextlib
import sys

import numpy as np

import actor_learner as al

RATES = (1e-5, 1e-4, 1e-3, 1e-2)  # initial rates; a member's rate changes when it copies another
UPDATES_BETWEEN_COPIES = 8


class Member:
    """A learner with actors of its own, and its recent return."""

    def __init__(self, actors, learning_rate, seed):
        algorithm = al.PPO(learning_rate=learning_rate, gamma=0.98, minibatch_size=256)
        self.actors = actors
        self.learner = al.Learner(actors.network, algorithm, action_space=actors.action_space, seed=seed)
        self.fitness = 0.0

    def learn(self, updates):
        returns = []
        for _ in range(updates):
            self.learner.update(self.actors.collect())
            self.actors.publish(self.learner.get_weights())
            returns.extend(self.actors.episodes["return"])
        self.fitness = float(np.mean(returns)) if returns else 0.0

    def copy(self, other, rng):
        """Exploit: copy the other's weights and optimizer. Explore: change its learning rate a little."""
        self.learner.network.set_weights(other.learner.get_weights())
        for mine, theirs in zip(self.learner.optimizer.variables, other.learner.optimizer.variables, strict=True):
            mine.assign(theirs)
        self.learner.optimizer.learning_rate = float(other.learner.optimizer.learning_rate) * rng.choice([0.8, 1.25])
        self.actors.publish(self.learner.get_weights())


def main(total_steps: int = 60_000, members: int = len(RATES)) -> list[Member]:
    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        population = []
        for seed, rate in enumerate(RATES[-members:]):
            pool = al.ActorPool("CartPole-v1", num_actors=1, envs_per_actor=8, unroll_length=64, seed=seed)
            population.append(Member(stack.enter_context(pool), rate, seed))
        while population[0].learner.env_steps < total_steps:
            for member in population:
                member.learn(UPDATES_BETWEEN_COPIES)
            population.sort(key=lambda member: member.fitness)
            print(*(f"{m.fitness:6.1f} at rate {float(m.learner.optimizer.learning_rate):.1e}" for m in population))
            population[0].copy(population[-1], rng)
    return population


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
