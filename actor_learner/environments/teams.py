"""Games that several policies play: which of them plays which agent, and the environments of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gymnasium.vector import AutoresetMode

from actor_learner.environments.agents import AgentsVectorEnv, ParallelGames
from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.environments import Environments
from actor_learner.environments.errors import EnvError, describe_error
from actor_learner.environments.games import Agent
from actor_learner.system.policies import ONLY_POLICY


@dataclass(frozen=True)
class PolicyOf:
    """Which policy plays which agent of a game.

    names: of the policies. rule: {pattern of agents' names: policy}, of which the first that matches counts, or a
    callable agent -> policy.
    """

    names: tuple[str, ...]
    rule: Mapping[str, str] | Callable[[Agent], str]

    def groups(self, agents: Sequence[Agent]) -> dict[str, list[Agent]]:
        """Return the agents of each policy.

        Raises EnvError for an agent without a policy, a policy that doesn't exist, and one without agents.
        """
        groups: dict[str, list[Agent]] = {name: [] for name in self.names}
        for agent in agents:
            groups[self._policy(agent)].append(agent)
        if idle := [name for name, group in groups.items() if not group]:
            text = f"`policy_of` must give each policy an agent, of {list(agents)}"
            raise EnvError(f"{text}. Received: none for policy {idle[0]!r}")
        return groups

    def _policy(self, agent: Agent) -> str:
        if isinstance(self.rule, Mapping):
            found = next((name for pattern, name in self.rule.items() if fnmatchcase(str(agent), pattern)), None)
            if found is None:
                text = f"`policy_of` must match every agent; '*' matches the others. It has {list(self.rule)}"
                raise EnvError(f"{text}. Received: agent={agent!r}")
        else:
            found = self._called(self.rule, agent)
            if found != (again := self._called(self.rule, agent)):
                text = "`policy_of` must give the same policy for an agent each time"
                raise EnvError(f"{text}. Received: {found!r}, then {again!r} for {agent!r}")
        if found not in self.names:
            raise EnvError(f"`policy_of` must name one of `policies`, {list(self.names)}. Received: {found!r}")
        return found

    @staticmethod
    def _called(rule: Callable[[Agent], str], agent: Agent) -> str:
        try:
            return rule(agent)
        except Exception as error:
            raise EnvError(f"`policy_of` raised {describe_error(error)}. Received: agent={agent!r}") from error


class TeamGames(AnyVectorEnv):
    """Parallel games that several policies play: `members` has a vector environment for each of them.

    Raises EnvError for agents of one policy that differ in their spaces.
    """

    def __init__(self, games: ParallelGames, policy_of: PolicyOf) -> None:
        self._games = games
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        groups = policy_of.groups(games.agents[0])
        if strange := [agents for agents in games.agents if agents != games.agents[0]]:
            text = f"With `policies`, every game of `{games.name}` must have the same agents"
            raise EnvError(f"{text}. Received: {games.agents[0]}, {strange[0]}")
        self.members = {name: AgentsVectorEnv(games, agents) for name, agents in groups.items()}
        self.shares = {name: len(agents) for name, agents in groups.items()}
        self.num_envs = sum(member.num_envs for member in self.members.values())

    def close_extras(self, **kwargs: Any) -> None:
        self._games.close()


def environments_of(vector_env: AnyVectorEnv, name: str, **options: Any) -> dict[str, Environments]:
    """Return the environments of a factory's vector environment, by the policies' names. Several step together.

    options: as for `Environments`.
    """
    if not isinstance(vector_env, TeamGames):
        return {ONLY_POLICY: Environments(vector_env, name=name, **options)}
    return {
        policy: Environments(member, name=f"{name} ({policy})", share=vector_env.shares[policy], **options)
        for policy, member in vector_env.members.items()
    }
