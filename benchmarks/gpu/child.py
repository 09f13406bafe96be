"""A measurement in a process of its own, as a process has one backend: prints each row as a line of JSON.

python -m benchmarks.gpu.child learner '{"network": "mlp", "precision": "float32", ...}'
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

import actor_learner as al
from actor_learner.system.keras_import import import_keras, keras_backend
from benchmarks.gpu.works import (
    ACTING_ROWS,
    EPOCHS,
    NETWORKS,
    PIPELINES,
    PRECISIONS,
    PipelineWork,
    make_batch,
    make_network,
    make_policy,
    random_observations,
)
from benchmarks.harness import Figures

COMPARED = 512  # observations whose log-probabilities are compared
MIN_UPDATES = 3
ROUNDS = 3
Rows = Iterator[Figures]


def describe(device: str) -> Rows:
    """Yield what the backend sees, and how it multiplies float32 by default."""
    import_keras()
    from actor_learner.learner import backend
    from actor_learner.runs.recorded_config import provenance

    resolved = backend.resolve_device(device)
    names = backend.gpu_names() if "GPU" in resolved else []
    yield {"backend": backend.NAME, "gpus": names, "uses_tf32": uses_tf32(), **provenance()}


def uses_tf32() -> bool | None:
    """Return whether this process may multiply float32 in TensorFloat-32; None where the backend decides."""
    if keras_backend() == "jax":
        import jax

        named = jax.config.jax_default_matmul_precision
        return None if named is None else named not in ("highest", "float32")
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def peak_bytes() -> int | None:
    """Return the most memory of the GPU that this process has used at once; None without one."""
    if keras_backend() == "jax":
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    import tensorflow as tf

    has_gpu = tf.config.list_physical_devices("GPU")
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if has_gpu else None


def make_learner(network: str, precision: str, device: str, minibatch_size: int) -> al.Learner:
    """Return a new learner of a network of `NETWORKS`."""
    from actor_learner.learner import backend

    resolved = backend.resolve_device(device)
    with backend.device(resolved):
        made = make_network(network, precision)
    algorithm = al.PPO(minibatch_size=minibatch_size, epochs=EPOCHS, learning_rate=1e-5)
    tf32 = PRECISIONS[precision].tf32 and "GPU" in resolved  # a CPU has no TF32: a rehearsal multiplies float32
    return al.Learner(made, algorithm, action_space=NETWORKS[network].action, device=device, tf32=tf32)


def learner_rows(
    network: str, precision: str, device: str, agree: bool, minibatch_sizes: Sequence[int], rows: int, seconds: float
) -> Rows:
    """Yield the agreement of actors and learner, with `agree`; then a row for each size of minibatches, small to large.

    Device memory is at its peak in the last row, as the backend may not count each size's own.
    """
    import_keras()
    if agree:
        yield {"part": "agreement", **measure_or_explain(lambda: agreement(network, precision, device))}
    for size in sorted(minibatch_sizes):
        row = measure_or_explain(lambda size=size: updates(network, precision, device, size, rows, seconds))
        yield {"part": "updates", "minibatch_size": size, **row}
        gc.collect()  # a learner of a failed update is in a cycle with the error


def measure_or_explain(measure: Callable[[], Figures]) -> Figures:
    """Return a measurement, or the first line of what went wrong."""
    try:
        return measure()
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")
        return {"failed": line if isinstance(error, MemoryError) else f"{type(error).__name__}: {line}"}


def agreement(network: str, precision: str, device: str) -> Figures:
    """Return the greatest difference between the log-probabilities of an actor and of the learner."""
    from actor_learner.learner import backend

    learner = make_learner(network, precision, device, ACTING_ROWS)
    learner.trace(make_batch(network, ACTING_ROWS, seed=0))  # compiles no update
    policy = make_policy(network, learner.network)
    policy.set_weights(learner.get_weights())
    seen = random_observations(NETWORKS[network].observation, (COMPARED,), np.random.default_rng(1))
    action, log_prob = policy.step(seen)
    update = learner._update
    assert update is not None
    evaluate = backend.Compiled(
        lambda rows: update.calls.outputs(rows, entropy=False)["log_prob"],
        learner.network.variables,
        with_xla=bool(learner.compiled_with_xla),
        tf32=learner.tf32,
    )
    with backend.device(learner.device):
        found = backend.to_numpy(evaluate(backend.to_device({"observation": seen, "action": action})))
    difference = np.abs(found - log_prob)
    return {"difference": float(difference.max()), "median": float(np.median(difference)), "observations": COMPARED}


def updates(network: str, precision: str, device: str, minibatch_size: int, rows: int, seconds: float) -> Figures:
    """Return the time of an update with and without a copy of its batch ahead, and what it takes of the device."""
    from actor_learner.benchmark.devices import Busyness, nvml_reader

    learner = make_learner(network, precision, device, minibatch_size)
    batches = [make_batch(network, rows, seed) for seed in (0, 1)]
    first = seconds_of(lambda: learner.update(batches[0]))
    learner.update(batches[1])
    transfer = statistics.median(seconds_of(lambda: copy_batch(learner, batches[0])) for _ in range(MIN_UPDATES))
    plain, ahead = [], []
    with Busyness(nvml_reader() if device == "gpu" else None) as busyness:
        for _ in range(ROUNDS):
            plain += repeat_updates(learner, batches, seconds / ROUNDS / 2, ahead=False)
            ahead += repeat_updates(learner, batches, seconds / ROUNDS / 2, ahead=True)
    update = statistics.median(plain)
    return {
        "rows": rows,
        "samples_per_second": rows * EPOCHS / update,
        "update_seconds": update,
        "update_seconds_copied_ahead": statistics.median(ahead),
        "transfer_seconds": transfer,
        "first_update_seconds": first,
        "gpu_busy": busyness.mean,
        "peak_bytes": peak_bytes() if device == "gpu" else None,
        "updates": len(plain) + len(ahead),
    }


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copy_batch(learner: al.Learner, batch: al.Trajectory) -> None:
    """Copy a batch to the device, and wait until it is there."""
    learner.prefetch(batch)
    assert learner._prefetched is not None
    for leaf in learner._prefetched.fields.arrays:
        leaf.block_until_ready() if hasattr(leaf, "block_until_ready") else leaf[..., -1].numpy()


def repeat_updates(
    learner: al.Learner, batches: Sequence[al.Trajectory], seconds: float, *, ahead: bool
) -> list[float]:
    """Return the time of each update of the batches in turns; the first of those with a copy ahead doesn't count."""
    from actor_learner.learner.ahead import prefetching

    times: list[float] = []
    begun = time.perf_counter()
    for present, following in itertools.cycle([(0, 1), (1, 0)]):
        started = time.perf_counter()
        with prefetching(lambda batch=batches[following]: batch, learner, useful=ahead):
            learner.update(batches[present])
        times.append(time.perf_counter() - started)
        if len(times) > MIN_UPDATES and time.perf_counter() - begun > seconds:
            return times[1:]
    raise AssertionError


def pipeline_rows(
    work: str,
    num_actors: int,
    device: str,
    acting: Sequence[str],
    rounds: int,
    seconds: float,
    tiny: bool,
    precision: str | None = None,
    envs_per_actor: int | None = None,
) -> Rows:
    """Yield a row for each place to act in: the whole pipeline with the learner on a device.

    tiny: whether batches are as short as can be. precision, envs_per_actor: of the config. Compiled programs are kept
    for the next processes: the number of actors doesn't change the update.
    """
    from actor_learner.benchmark.devices import nvml_reader
    from actor_learner.cli.train import prepare_process
    from actor_learner.environments.factory import resolve_env
    from actor_learner.system import compile_cache

    found = PIPELINES[work].tiny() if tiny else PIPELINES[work]
    config = found.config(num_actors=num_actors, device=device, precision=precision, envs_per_actor=envs_per_actor)
    try:
        resolve_env(config.env, config.env_kwargs, config.vectorization)
    except (ValueError, ImportError) as error:
        for place in acting:
            yield {"part": "pipeline", "acting": place, "skipped": str(error).partition("\n")[0]}
        return
    prepare_process(num_actors, config.max_policy_lag)
    compile_cache.begin()
    import_keras()
    read_gpu = nvml_reader() if device == "gpu" else None
    for place in acting:
        measured = functools.partial(pipeline, config.replace(acting=place), rounds, seconds, read_gpu)
        yield {"part": "pipeline", "acting": place, **measure_or_explain(measured)}


def pipeline(config: al.TrainConfig, rounds: int, seconds: float, read_gpu: Callable[[], float] | None) -> Figures:
    """Return the medians of the figures of several stretches of the whole pipeline, and each stretch's speed."""
    import keras

    from actor_learner.benchmark.whole import System

    keras.utils.clear_session()  # for the name of the cached export
    with System(config) as system:
        runs = [run(system, seconds, read_gpu) for _ in range(rounds)]
    median = {
        name: None if runs[0][name] is None else statistics.median(each[name] for each in runs) for name in runs[0]
    }
    return {**median, "rounds_steps_per_second": [each["steps_per_second"] for each in runs]}


def run(system: Any, seconds: float, read_gpu: Callable[[], float] | None) -> Figures:
    """Return the figures of one stretch of the whole pipeline: shares of the learner's, and of the actors' time."""
    from actor_learner.benchmark.devices import Busyness
    from actor_learner.benchmark.whole import LEARNER

    with Busyness(read_gpu) as busyness:
        done = system.run(seconds)

    def share(name: str, processes: int, *, of_learner: bool) -> float:
        spans = [each for each in done.spans if each.name == name and (each.process == LEARNER) == of_learner]
        return sum(span.end - span.start for span in spans) / done.seconds / processes

    return {
        "steps_per_second": done.steps_per_second,
        "learning_share": share("learning", 1, of_learner=True),
        "acting_share": share("acting", max(1, system.config.num_actors), of_learner=False),
        "gpu_busy": busyness.mean,
    }


def export_rows(
    num_actors: Sequence[int], works: Sequence[str], precision: str | None = None, envs_per_actor: int | None = None
) -> Rows:
    """Yield the name of each export that the measurements need, once it is in the cache."""
    import_keras()
    for name, network in NETWORKS.items():
        for precision in network.precisions:
            if not PRECISIONS[precision].tf32:  # its layers are float32's
                make_policy(name, round_weights(make_network(name, precision)))
                yield {"exported": f"{name}, {precision}"}
    for work in works:
        pipeline = PIPELINES[work]
        configs = [pipeline.config(num_actors=actors, envs_per_actor=envs_per_actor) for actors in num_actors]
        for size in sorted({max(config.env_counts) for config in configs}):  # those that a pool exports the policy for
            export_pipeline(pipeline, size, precision)
            yield {"exported": f"{work}, {size} environments"}
    for name in export_device_works(num_actors):
        yield {"exported": name}


def export_device_works(num_actors: Sequence[int]) -> Iterator[str]:
    """Export the networks of `scripts/measure device`, for its sizes on the device and in actors, and yield names.

    Works whose library isn't installed are left out.
    """
    import gymnasium as gym
    import keras

    from actor_learner.environments.jax.source import find_jax_env
    from actor_learner.policy.export.exporting import export_network
    from actor_learner.spaces.spaces import Spaces
    from benchmarks.device.device import OF_TRUNCATION, WORKS

    exported = set()
    for work in (OF_TRUNCATION, *WORKS.values()):
        if find_spec(work.package) is None:
            continue
        wanted = [(work.env, find_jax_env(work.env, work.env_kwargs).make(work.env_kwargs), {work.num_envs})]
        in_actors = {-(-work.num_envs // actors) for actors in num_actors}
        gym_ids = {options["env"] for options in work.actors.values() if ":" not in options["env"]}
        wanted += [(env_id, gym.make(env_id), in_actors) for env_id in sorted(gym_ids)]
        for name, env, counts in wanted:
            for count in sorted(counts):
                if (name, count) not in exported:
                    keras.utils.clear_session()
                    network = round_weights(al.default_network(env.observation_space, env.action_space))
                    export_network(network, Spaces(env.observation_space, env.action_space), count)
                    yield f"{name}, {count} environments"
                    exported.add((name, count))


def round_weights(network: Any) -> Any:
    """Round a network's weights, so that an archive of its graphs, which take any weights, is a tenth as large."""
    for weight in network.weights:
        values = np.asarray(weight.value)
        if spread := float(values.std()):
            weight.assign(np.round(values / spread) * spread)
    return network


def export_pipeline(work: PipelineWork, envs: int, precision: str | None) -> None:
    """Export the network of a pipeline for actors with so many environments."""
    import keras

    from actor_learner.build import make_network as network_of, make_pool

    keras.utils.clear_session()
    layers = PRECISIONS[precision].layers if precision else None  # tf32 is of the device alone
    config = work.config(num_actors=0, num_envs=envs, max_policy_lag=0, precision=layers)
    make_pool(config, lambda *spaces: round_weights(network_of(config, None, *spaces)), seed=0, logs_dir=None).close()


KINDS: dict[str, Callable[..., Rows]] = {
    "describe": describe,
    "learner": learner_rows,
    "pipeline": pipeline_rows,
    "exports": export_rows,
}


def main() -> None:
    """Print the rows of a measurement, one in a line; what else is printed goes to standard error."""
    kind, request = sys.argv[1:]
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for row in KINDS[kind](**json.loads(request)):
        print(json.dumps(row), file=lines, flush=True)


if __name__ == "__main__":
    main()
