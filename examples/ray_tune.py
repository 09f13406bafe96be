"""Population-based training by Ray Tune: the trials are whole runs, on whatever machines the cluster has.

A trial goes on with its own run (`resume`), or, where Tune replaces it by a better one, from that one's weights with a
changed learning rate (`init_from`). Needs `pip install "ray[tune]"`.

    python examples/ray_tune.py [STEPS [ADDRESS]]     # steps of each trial; a Ray cluster, such as auto
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import actor_learner as al

TRIALS, ROUNDS = 4, 5


def trial(settings):
    """Trains in rounds; after each, Tune may stop the trial and go on from another one's checkpoint."""
    steps = settings["steps"] // ROUNDS
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    run, done, in_run, init_from = folder / "run", 0, 0, None
    if (checkpoint := tune.get_checkpoint()) is not None:
        checkpoint.to_directory(folder)
        state = json.loads((folder / "state.json").read_text())
        done, in_run, init_from = state["round"], state["in_run"], state["init_from"]
        if state["learning_rate"] != settings["learning_rate"]:  # another trial's run
            in_run, init_from = 0, str(run.rename(folder / f"before-{done}"))
    config = al.preset(
        "CartPole-v1",
        learning_rate=settings["learning_rate"],
        clip_range=0.2,
        num_actors=1,
        init_from=init_from,
        quiet=True,
        run_dir=str(run),
    )
    while done < ROUNDS:
        done, in_run = done + 1, in_run + 1
        result = al.train(config.replace(total_steps=in_run * steps), resume=in_run > 1)
        state = {"round": done, "in_run": in_run, "init_from": init_from, "learning_rate": settings["learning_rate"]}
        (folder / "state.json").write_text(json.dumps(state))
        mean = result.metrics["episode_return"]
        tune.report({"episode_return": mean, "round": done}, checkpoint=tune.Checkpoint.from_directory(folder))
    shutil.rmtree(folder)


def main(total_steps=100_000, address=None):
    ray.init(address, log_to_driver=False, include_dashboard=False)
    changes = {"learning_rate": tune.loguniform(1e-5, 1e-2)}
    scheduler = PopulationBasedTraining(
        time_attr="round", perturbation_interval=1, hyperparam_mutations=changes, quantile_fraction=0.25
    )
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={**changes, "steps": total_steps},
        tune_config=tune.TuneConfig(metric="episode_return", mode="max", num_samples=TRIALS, scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(Path("runs/ray_tune").absolute()), verbose=0),
    )
    best = tuner.fit().get_best_result()
    print(f"best: {best.metrics['episode_return']:.1f} with learning_rate={best.config['learning_rate']:.2g}")
    ray.shutdown()
    return best.metrics["episode_return"]


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]), *sys.argv[2:3])
