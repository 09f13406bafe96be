"""Shares a run on the Hugging Face Hub: the run's files, a learning curve, a video, and a card with its results.

The repository is a run directory again, without logs, incidents and replay buffer: all that reads one, reads
`hf://owner/name` (see `system.hub`). The repository is made first, which shows that the token may write there; its
content is one commit, once everything is ready.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from actor_learner.config.references import marked_name
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.video import recorded, recording_arguments
from actor_learner.evaluate import Evaluation, evaluate, is_runs_own, run_environment
from actor_learner.export import result_policy
from actor_learner.networks.saving import network_file
from actor_learner.replay.saving import BUFFER_FILES
from actor_learner.reports.plot import plot
from actor_learner.runs.checkpoints import RunState, newest_whole
from actor_learner.runs.directory import RunDirectory, open_run, read_config, write_recorded
from actor_learner.runs.metrics import last_metrics
from actor_learner.runs.recorded_config import WITHOUT_EFFECT, RecordedConfig, flat_config
from actor_learner.system import __version__
from actor_learner.system.fields import check_count
from actor_learner.system.files import listed_files, one_line, read_file, write_folder_atomically
from actor_learner.system.hub import LIBRARY, RUN_FILES, check_repository, hub_api, hub_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelCard

CARD, CURVE, VIDEO = "README.md", "curve.png", "replay.mp4"  # names that the Hub's pages show


class _Facts(NamedTuple):
    """The content of the card. env_steps: those that the run took. files: names in the repository's root."""

    config: RecordedConfig
    evaluation: Evaluation
    env: str
    seed: int
    env_steps: int
    address: str
    files: Sequence[str]


def push(
    run_dir: str | os.PathLike[str],
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    video: bool = True,
    episodes: int = 20,
    seed: int = 0,
    env: str | Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Callable[..., Any]] | None = None,
    wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Evaluate the policy of a run, upload the run to the Hugging Face Hub in one commit, and return its address.

    The repository is made if it isn't there, before the evaluation. Files of an earlier push that this one doesn't have
    are deleted. The absolute path of the run isn't uploaded; other values of config.json, such as `env_kwargs`, are.

    Args:
        run_dir: A run that has ended, whether or not it took all its steps, or a checkpoint of it, as for `export`.
        repo: "owner/name".
        private: Makes a new repository private; an existing one must be private already.
        revision: The branch, which is made if it isn't there; by default the main one.
        commit_message: The commit's first line.
        video: Records an episode as replay.mp4, where the environment draws pictures.
        episodes: Number of episodes that the policy is evaluated on.
        seed: Seed of the episodes.
        env: Plays another environment than the run's, as for `evaluate`.
        env_kwargs: Keyword arguments of the environment.
        wrappers: Wrappers around the environment.
        wrapper_kwargs: Keyword arguments of the wrappers.

    Raises:
        ValueError: `run_dir` holds no policy, its environment must be given, `repo` is no owner/name, or is public
            although `private` is given.
        ImportError: huggingface_hub isn't installed; names the extra.
        OSError: There is no token, it gives no right to write, or the Hub can't be reached.
    """
    check_count("episodes", episodes)
    check_count("seed", seed, 0)
    check_repository("repo", repo)
    run = open_run(run_dir)
    policy = result_policy(run)
    given: dict[str, Any] = {
        "env": env,
        "env_kwargs": env_kwargs,
        "wrappers": wrappers,
        "wrapper_kwargs": wrapper_kwargs,
    }
    config = read_config(run.path)
    factory = resolve_env(**run_environment(config, **given), check_pickle=False)
    api = hub_api("`push`")
    with tempfile.TemporaryDirectory(prefix="actor-learner-push-") as name:
        folder = Path(name)
        policy.save(folder / "policy")
        _copy_run(run, config, folder)
        _prepare_repository(api, repo, private, revision)
        evaluation = evaluate(run.weights, episodes=episodes, seed=seed, **given)
        _draw_curve(run, folder / CURVE)
        if video:
            _record(run, factory, seed, is_runs_own(config, env, env_kwargs), folder / VIDEO)
        steps = (
            RunState.read(run.checkpoint).env_steps if run.checkpoint else last_metrics(run.metrics).get("env_steps", 0)
        )
        facts = _Facts(
            config,
            evaluation,
            env=config.env if env is None else factory.name,
            seed=seed,
            env_steps=int(steps),
            address=f"hf://{repo}" + (f"@{revision}" if revision else ""),
            files=[file.name for file in folder.iterdir()],
        )
        with hub_errors(repo):
            _card(facts).save(folder / CARD)
            _upload(api, folder, repo, revision, commit_message)
    return facts.address


def _prepare_repository(api: HfApi, repo: str, private: bool, revision: str | None) -> None:
    """Make the repository and the branch. Raise what `push` raises of the Hub, before anything takes time."""
    from huggingface_hub import get_token
    from huggingface_hub.utils._validators import validate_repo_id  # `utils` exports it, but not to type checkers

    with hub_errors(repo):
        validate_repo_id(repo)
    if get_token() is None:
        raise PermissionError(
            "`push` needs a token that may write: `hf auth login`, or the variable HF_TOKEN. Received: no token"
        )
    with hub_errors(repo):
        api.whoami()
        is_public = private and api.repo_exists(repo) and not api.model_info(repo).private
    if is_public:
        raise ValueError(
            "`private`: the repository is there, and everyone can read it; change that on its page, or give another "
            f"name. Received: {repo}"
        )
    with hub_errors(repo):
        api.create_repo(repo, private=private or None, exist_ok=True)
        api.auth_check(repo, write=True)  # `create_repo` returns where a repository is there that the token may read
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)


def _copy_run(run: RunDirectory, config: RecordedConfig, folder: Path) -> None:
    """Copy config.json without the run's path, metrics, network, and the newest whole checkpoint without its buffer."""
    write_recorded(folder / run.config.name, {**config, "run_dir": None})
    files = [network_file(run.weights), *([run.metrics] if run.metrics.exists() else [])]
    for file in files:
        shutil.copyfile(file, folder / file.name)
    if (
        checkpoint := run.checkpoint or newest_whole(run.checkpoints)[0]
    ) is not None:  # what --init-from takes beside the network

        def write(partial: Path) -> None:
            for name in listed_files(checkpoint):
                if not name.startswith(BUFFER_FILES):
                    (partial / name).write_bytes(read_file(checkpoint, name))

        write_folder_atomically(folder / run.checkpoints.name / checkpoint.name, write)


def _draw_curve(run: RunDirectory, output: Path) -> None:
    """Draw the learning curve, or warn why there is none."""
    try:
        plot([run.path], output)
    except (ImportError, ValueError) as error:
        warnings.warn(f"pushed without {output.name}: {one_line(error)}", UserWarning, stacklevel=3)


def _record(run: RunDirectory, factory: Any, seed: int, calls: bool, output: Path) -> None:
    """Record an episode, or warn why there is no video."""
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        try:
            arguments = recording_arguments(recorded(factory, folder, 1))
            evaluate(run.weights, episodes=1, seed=seed, calls=calls, **arguments)
            next(Path(folder).glob("*.mp4")).rename(output)
        except Exception as error:  # renderers are foreign code, and need packages and displays
            warnings.warn(f"pushed without {output.name}: {one_line(error)}", UserWarning, stacklevel=3)


def _upload(api: HfApi, folder: Path, repo: str, revision: str | None, commit_message: str | None) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
    ours = (*RUN_FILES, CURVE, VIDEO)
    old = [name for name in api.list_repo_files(repo, revision=revision) if any(fnmatch(name, one) for one in ours)]
    operations: list[Any] = [
        *(CommitOperationAdd(name, folder / name) for name in names),
        *(CommitOperationDelete(name) for name in old if name not in names),
    ]
    message = commit_message or f"Push a run of {LIBRARY} {__version__}"
    api.create_commit(repo, operations, commit_message=message, revision=revision)


def _card(facts: _Facts) -> ModelCard:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    env, config, evaluation = facts.env, facts.config, facts.evaluation
    result = EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=env,
        dataset_name=env,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}",
    )
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", "deep-reinforcement-learning", "keras", env, config.algorithm],
        model_name=config.algorithm_title,
        eval_results=[result],
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_card_text(facts)}")


def _card_text(facts: _Facts) -> str:
    config, evaluation, address = facts.config, facts.evaluation, facts.address
    algorithm, episodes = config.algorithm_title, len(evaluation.returns)
    low, high = evaluation.confidence_interval()
    interval = f"; the 95% interval of the mean is {low:.2f} to {high:.2f}" if episodes > 1 else ""
    needs_env = "" if isinstance(config.get("env"), str) else " --env module:factory"
    settings, versions = flat_config({**config, "run_dir": None}, skip=WITHOUT_EFFECT), config.get("versions")
    versions = {LIBRARY: __version__, **(versions if isinstance(versions, Mapping) else {})}
    pictures = {CURVE: f"![Learning curve]({CURVE})\n\n", VIDEO: f"An episode: [{VIDEO}]({VIDEO})\n\n"}
    return f"""\
# {algorithm} on {facts.env}

A policy that {LIBRARY} trained with {algorithm} for {facts.env_steps:,} env steps.

| episodes | seed | mean return | standard deviation | mean length |
|-|-|-|-|-|
| {episodes} | {facts.seed} | {evaluation.mean:.2f} | {evaluation.std:.2f} | {evaluation.mean_length:.1f} |

Actions are the most probable ones{interval}.

{"".join(text for name, text in pictures.items() if name in facts.files)}\
## Usage

```sh
pip install '{LIBRARY}[hub]'
actor-learner evaluate {address} --episodes {episodes} --seed {facts.seed}{needs_env}
actor-learner train {_env_words(config)} --init-from {address}
```

```python
import actor_learner as al

policy = al.load_policy("{address}")  # NumPy and LiteRT, no TensorFlow
observation = policy.observation_space.sample()  # or what your environment returns
action = policy.act(observation)
```

## Settings

{_table("setting", settings)}
## Versions

{_table("package", versions)}"""


def _env_words(config: RecordedConfig) -> str:
    """Return the words of `train` that say which environment, and which algorithm, the run had."""
    algorithm = config.get("algorithm")
    env = config.get("env")
    words = [env if isinstance(env, str) else "module:factory"]
    words += ["--algorithm", str(algorithm.get("name"))] if isinstance(algorithm, Mapping) else []
    if config.get("env_kwargs"):
        words += ["--env-kwargs", json.dumps(config["env_kwargs"])]
    if config.get("wrappers"):
        words += ["--wrappers", ",".join(marked_name(wrapper) or str(wrapper) for wrapper in config["wrappers"])]
    return shlex.join(words)


def _table(name: str, values: Mapping[str, Any]) -> str:
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in values.items()]
    return "\n".join([f"| {name} | value |", "|-|-|", *rows, ""])


def _cell(value: object) -> str:
    """Return a value as text that stays within its cell."""
    text = " ".join(str(value).split()).replace("|", "\\|").replace("`", "'")
    return f"`{text}`" if text else ""
