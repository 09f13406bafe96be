"""Writes a run's policy for use elsewhere: as LiteRT, Keras, ONNX or SavedModel, with its spaces as JSON."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actor_learner.networks.saving import load_network, write_network
from actor_learner.policy.exported import ExportedPolicy
from actor_learner.policy.policy import checkpoint_policy
from actor_learner.runs.directory import RunDirectory, open_policy, read_config
from actor_learner.system.fields import check_choice
from actor_learner.system.files import one_line, write_folder_atomically
from actor_learner.system.installation import install_command
from actor_learner.system.keras_import import check_installed, import_keras, keras_backend, silent_stderr
from actor_learner.system.policies import named_policies

if TYPE_CHECKING:
    import keras

    from actor_learner.spaces.spaces import Spaces

FORMATS = ("litert", "tflite", "keras", "onnx", "saved_model")
SPACES = "spaces.json"


def export(
    run_dir: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    format: str = "litert",
    network: keras.Model | None = None,
) -> Path:
    """Write the policy of a run into a new folder, for use elsewhere, and return the folder.

    `al.load_policy` reads "litert" with NumPy and ai-edge-litert alone. Each of the other formats holds one model:
    `policy.tflite` for LiteRT in any language, by its signature; `network.keras` for `al.load_network`; `policy.onnx`
    for ONNX Runtime; a SavedModel for TensorFlow and its servers.
    The model maps the environment's observations to deterministic actions for it (normalization, masks, clipping and
    scaling inside), and to the distribution's parameters. `spaces.json` describes both spaces and, for these four, the
    model's inputs and outputs.

    Args:
        run_dir: A run that has ended, with or without all its steps, "hf://owner/name", or a checkpoint of such a run:
            "RUN@best", "RUN@latest", "RUN@114" after so many updates, or its folder.
        output: The new folder; by default `<name of the run>-<format>` in the working directory.
        format: "litert", "tflite", "keras", "onnx" or "saved_model".
        network: A built network that gets the weights, for a run whose network Keras can't rebuild from its file; not
            for "litert".

    Raises:
        ValueError: The format is unknown, `output` exists, the run has no policy or a damaged one, or Keras's backend
            can't write the format.
        ImportError: An optional package is missing; names the extra.
        OSError: The disk is full or can't be written.
    """
    check_choice("format", format, FORMATS)
    if network is not None and format == "litert":
        raise ValueError(
            "`network` can't be given with format='litert', which copies the policy that the run exported. "
            f"Received: network={network!r}"
        )
    run = open_policy(run_dir)
    if output is None:
        of_checkpoint = "" if run.checkpoint is None else f"-{int(run.checkpoint.resolve().name)}"
        output = f"{run.path.resolve().name}{of_checkpoint}-{format}"
    output = Path(output)
    if os.path.lexists(output):
        raise ValueError(f"`output` exists; give another name. Received: output={str(output)!r}")
    _check_packages(format)
    exported = result_policy(run)
    chosen = read_config(run.path).chosen if run.config.exists() else {}
    masked = exported.trained_with_masks or bool(chosen.get("action_masks"))
    if masked and not exported.spaces().has_mask_leaf:
        remedy = "`policy.act(observation, action_mask=mask)`" if format == "litert" else "its input `action_mask`"
        warnings.warn(
            f"This policy was trained with action masks: give one with each observation, by {remedy}, bool [N, "
            f"{exported.spaces().masks.size}]. Received: run_dir={str(run_dir)!r}",
            UserWarning,
            stacklevel=2,
        )
    if format == "litert":
        if exported.fallback:
            raise ValueError(
                "LiteRT can't run the network of this run; export it as keras, onnx or saved_model. "
                "Received: format='litert'"
            )

        def write(folder: Path) -> None:
            exported.write(folder)
            _write_spaces(exported, folder)

        write_folder_atomically(output, write)
    else:
        import_keras()
        network = load_network(run.weights, network)
        write_folder_atomically(output, lambda folder: _write_model(network, exported, masked, format, folder))
    return output


def result_policy(run: RunDirectory) -> ExportedPolicy:
    """Return the policy that a run exported at its end. Raises ValueError if there is none, or a damaged one."""
    if not (run.policy / "policy.json").is_file():
        if several := named_policies(run.path):
            raise ValueError(f"{several}. Received: run_dir={str(run.path)!r}")
        raise ValueError(
            "`run_dir` holds no policy yet: a run saves it when it ends, also after Ctrl-C. "
            f"Received: run_dir={str(run.path)!r}"
        )
    return ExportedPolicy.load(run.policy) if run.checkpoint is None else checkpoint_policy(run.checkpoint)


def _check_packages(format: str) -> None:
    """Raise ImportError if a package that the format needs is missing, before anything is loaded."""
    if format != "litert":
        backend = keras_backend()
        check_installed("tensorflow", f"`format={format!r}`")
        lacks = format == "tflite" or (format == "onnx" and importlib.util.find_spec("jax2onnx") is None)
        if lacks and backend != "tensorflow":
            raise ValueError(
                f"`format={format!r}` needs Keras on TensorFlow, also for a run on JAX: export with "
                f"KERAS_BACKEND=tensorflow. Received: KERAS_BACKEND={backend}"
            )
    if format == "onnx" and importlib.util.find_spec("tf2onnx") is None:
        raise ImportError(f"`format='onnx'` needs tf2onnx: {install_command('actor-learner[onnx]')}")


def _write_model(network: keras.Model, exported: ExportedPolicy, masked: bool, format: str, folder: Path) -> None:
    """Write the acting network in float32 as one model. masked: True if masks are an input."""
    from actor_learner.networks.contract import computing_in_float32
    from actor_learner.policy.export.deployment import acting_network

    spaces = exported.spaces()
    spaces = replace(spaces, masked=masked or spaces.has_mask_leaf)
    with computing_in_float32(network):
        model = acting_network(network, spaces)
        _convert(model, spaces, format, folder)
    # In a SavedModel, Keras names inputs like arguments of functions.
    inputs = {name.replace(".", "_") if format == "saved_model" else name: x for name, x in model.input.items()}
    named = {"inputs": inputs, "outputs": model.output}
    tensors = {
        kind: {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in group.items()}
        for kind, group in named.items()
    }
    _write_spaces(exported, folder, **tensors)


def _convert(model: keras.Model, spaces: Spaces, format: str, folder: Path) -> None:
    """Write a model, and run what is written.

    Raises ValueError if the format can't express the network, OSError if the folder can't be written.
    """
    from actor_learner.policy.export.written import check_written, with_constants

    try:
        with _silence_converters(), contextlib.nullcontext() if format == "keras" else with_constants(model):
            if format == "saved_model":
                model.export(folder, format="tf_saved_model", verbose=False)
            elif format == "tflite":
                model.export(folder / "policy.tflite", format="litert", verbose=False, input_signature=[model.input])
            elif format == "onnx":
                model.export(folder / "policy.onnx", format="onnx", verbose=False, input_signature=[model.input])
            elif write_network(model, folder).suffix != ".keras":
                raise ValueError("Keras can't rebuild it from a file")
        with _silence_converters():
            check_written(model, spaces, format, folder)
    except OSError:
        raise
    except Exception as error:  # converters raise any type
        raise ValueError(
            f"The network of this run can't be exported in this format ({one_line(error)}); try another. "
            f"Received: format={format!r}"
        ) from error


@contextlib.contextmanager
def _silence_converters() -> Iterator[None]:
    """Silences the converters' messages; converters raise errors as exceptions."""
    loggers = [logging.getLogger(name) for name in ("tf2onnx", "tensorflow", "absl")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with silent_stderr(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _write_spaces(exported: ExportedPolicy, folder: Path, **tensors: Any) -> None:
    spaces = {"observation_space": exported.observation_space, "action_space": exported.action_space, **tensors}
    if exported.state_shapes:
        spaces["memory"] = {
            f"state_{index}": {"next": f"next_state_{index}", "shape": list(shape), "initial": 0.0}
            for index, shape in enumerate(exported.state_shapes)
        }
    (folder / SPACES).write_text(json.dumps(spaces, indent=1) + "\n", encoding="utf-8")
