"""Hyperparameter search with Optuna (`pip install optuna`); a callback prunes the runs that fall behind.

python examples/search_optuna.py [TOTAL_STEPS of each trial] [TRIALS]
"""

import sys

import optuna

import actor_learner as al


class Pruning(al.callbacks.Callback):
    """Report the return to the trial after each epoch, and end the run if the pruner says so."""

    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        if "episode_return" in logs:
            self.trial.report(logs["episode_return"], step=epoch)
            if self.trial.should_prune():
                self.model.stop_training = True
                self.pruned = True

    pruned = False


def objective(trial, total_steps):
    pruning = Pruning(trial)
    config = al.TrainConfig(
        env="CartPole-v1",
        algorithm=al.PPO(
            learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
            gamma=trial.suggest_categorical("gamma", [0.9, 0.98, 0.99]),
            epochs=trial.suggest_int("epochs", 1, 20),
            minibatch_size=256,
        ),
        total_steps=total_steps,
        unroll_length=32,
        updates_per_epoch=5,
        callbacks=[pruning],
        quiet=True,
    )
    result = al.train(config)
    if pruning.pruned:
        raise optuna.TrialPruned
    return al.evaluate(result.run_dir, episodes=20, seed=1).mean


def main(total_steps: int = 30_000, trials: int = 12) -> optuna.Study:
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=min(4, trials // 2), n_warmup_steps=2),
    )
    study.optimize(lambda trial: objective(trial, total_steps), n_trials=trials)
    return study


if __name__ == "__main__":
    study = main(*map(int, sys.argv[1:]))
    print("best:", study.best_value, study.best_params)
