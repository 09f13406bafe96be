"""The same minibatches with torch's nn.LSTM: `python -m benchmarks.recurrent.programs.torch_lstm update JSON`.

No episode starts within its sequences, which nn.LSTM can't express. Run by an interpreter with torch; prints JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class Network(nn.Module):
    """A dense layer, an LSTM and two heads."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.dense, self.lstm = nn.Linear(8, 64), nn.LSTM(64, units)
        self.policy, self.value = nn.Linear(units, 4), nn.Linear(units, 1)

    def forward(self, observation: Any, state: Any) -> tuple[Any, Any]:
        hidden, _ = self.lstm(torch.tanh(self.dense(observation)), state)
        return self.policy(hidden), self.value(hidden)[..., 0]


def update(task: SimpleNamespace) -> dict[str, float]:
    """Return the seconds of a minibatch: the median of updates of `4 x epochs` minibatches."""
    torch.manual_seed(0)
    steps, columns = task.steps, task.columns
    network = Network(task.units)
    optimizer = torch.optim.Adam(network.parameters(), 3e-4, eps=1e-5)
    rows = (steps, 4 * columns)
    observation, advantage, target = torch.randn(*rows, 8), torch.randn(rows), torch.randn(rows)
    action, behaviour = torch.randint(0, 4, rows), torch.full(rows, -1.3863)
    state = torch.zeros(2, 1, 4 * columns, task.units)

    def minibatch(chosen: Any) -> None:
        logits, value = network(observation[:, chosen], tuple(state[:, :, chosen]))
        log_prob = torch.log_softmax(logits, -1)
        ratio = (log_prob.gather(-1, action[:, chosen, None])[..., 0] - behaviour[:, chosen]).exp()
        own = advantage[:, chosen]
        own = (own - own.mean()) / (own.std() + 1e-8)
        loss = -torch.minimum(ratio * own, ratio.clamp(0.8, 1.2) * own).mean()
        loss = loss + 0.5 * (value - target[:, chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()

    found = []
    for _ in range(task.updates + 1):
        begun = time.process_time()
        for _ in range(task.epochs):
            for chosen in torch.randperm(4 * columns).split(columns):
                minibatch(chosen)
        found.append(time.process_time() - begun)
    return {"minibatch": statistics.median(found[1:]) / (4 * task.epochs)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"update": update}[sys.argv[1]](SimpleNamespace(**json.loads(sys.argv[2])))))
