"""The network of the peers in torch without one of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal


def layer(module: Any, gain: float = 2**0.5) -> Any:
    """Initialise a layer with orthogonal weights and no bias."""
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    """Two trunks of 64 and 64 for vectors; one Nature CNN for images."""

    def __init__(self, shape: tuple[int, ...], actions: Any) -> None:
        super().__init__()
        self.discrete, self.images = hasattr(actions, "n"), len(shape) == 3
        outputs = int(actions.n) if self.discrete else int(np.prod(actions.shape))
        if self.images:
            self.trunk = nn.Sequential(
                *(layer(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
                *(layer(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU(), nn.Flatten()),
                *(layer(nn.Linear(3136, 512)), nn.ReLU()),
            )
            self.actor, self.critic = layer(nn.Linear(512, outputs), 0.01), layer(nn.Linear(512, 1), 1.0)
        else:
            inputs = int(np.prod(shape))
            self.actor, self.critic = self._tower(inputs, outputs, 0.01), self._tower(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    @staticmethod
    def _tower(inputs: int, outputs: int, gain: float) -> Any:
        hidden = layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()
        return nn.Sequential(*hidden, layer(nn.Linear(64, outputs), gain))

    def outputs(self, observation: Any) -> tuple[Any, Any]:
        """Return logits or means, and values `[B, 1]`."""
        hidden = self.trunk(observation / 255.0) if self.images else observation
        return self.actor(hidden), self.critic(hidden)

    def forward(self, observation: Any) -> tuple[Any, Any]:
        """Return the distribution of actions, and the values."""
        mean, value = self.outputs(observation)
        distribution = Categorical(logits=mean) if self.discrete else Independent(Normal(mean, self.log_std.exp()), 1)
        return distribution, value.squeeze(-1)
