"""Where a run is: a folder, or a repository of the Hugging Face Hub, hf://owner/name or hf://owner/name@revision.

Of a run in a folder, RUN@best, RUN@latest and RUN@114 are checkpoints: the best, the newest, that after 114 updates.

`local_path` is the one place that tells them apart. huggingface_hub downloads, and keeps its cache under HF_HOME. Its
cache consists of links, which no reader here follows (see `system.untrusted`): the readers get a copy of plain files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from actor_learner.system import __version__
from actor_learner.system.fields import refusal
from actor_learner.system.files import one_line
from actor_learner.system.installation import check_package

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LIBRARY = "actor-learner"
RUN_FILES = ("config.json", "metrics.jsonl", "network.keras", "network.weights.h5", "policy/*", "checkpoints/*")
"""The files of a repository that belong to the run."""

_REPOSITORY = r"[\w.-]+/[\w.-]+"
_ADDRESS = re.compile(rf"hf:/+(?P<repo>{_REPOSITORY})(?:@(?P<revision>\S+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_on_hub(run: object) -> bool:
    """Return True for an address of the Hub; also for one that went through `Path`, which makes "hf:/owner/name"."""
    return isinstance(run, str | os.PathLike) and str(run).startswith("hf:/")


def local_path(run: str | os.PathLike[str]) -> Path:
    """Return the folder of a run, downloaded first if it is on the Hub.

    Each call asks the Hub which commit is meant, unless the address names one that was downloaded before; files that
    are in the cache aren't downloaded again. Without a connection, the newest cached commit is taken.

    run: a path, "hf://owner/name" or "hf://owner/name@revision" (a branch, tag or commit); a checkpoint is its folder,
        "RUN@best", "RUN@latest" or "RUN@114".

    Raises:
        ValueError: The address isn't one, or there is no such checkpoint, or repository, revision or run on the Hub.
        ImportError: huggingface_hub isn't installed; names the extra.
        OSError: The Hub can't be reached, or a download fails.
    """
    if not is_on_hub(run):
        return _checkpoint(Path(run))
    address, given = _split(run), str(run)
    api, repo, revision = hub_api("hf://"), address["repo"], address["revision"]
    if revision and _COMMIT.fullmatch(revision) and (kept := _copy_of(repo, revision)).is_dir():
        return kept
    with hub_errors(given):
        snapshot = Path(api.snapshot_download(repo, revision=revision, allow_patterns=list(RUN_FILES)))
    if not (snapshot / "config.json").exists() and not (snapshot / "policy" / "policy.json").exists():
        raise ValueError(
            "The repository holds no run: it has neither config.json nor policy/policy.json, "
            f"which `actor-learner push` writes. Received: {given}"
        )
    return _plain_copy(snapshot, _copy_of(repo, snapshot.name))


def _checkpoint(path: Path) -> Path:
    """Return the folder of the checkpoint that a path names; any other path as it is."""
    base, which = _named(path)
    folder = Path(base) / "checkpoints"
    if not base or path.exists() or not folder.is_dir():
        return path
    found = {int(each.name): each for each in sorted(folder.iterdir()) if re.fullmatch(r"\d{10}", each.name)}
    chosen = list(found.values())
    if which == "best":
        chosen = [each for each in chosen if _is_best(each)]
    elif which != "latest":
        chosen = [each for updates, each in found.items() if which.isdecimal() and updates == int(which)]
    if not chosen:
        none = "no return has chosen a best checkpoint yet" if which == "best" else "there is no such checkpoint"
        listed = ", ".join(f"{base}@{updates}" for updates in found) or "none"
        raise ValueError(f"{none}; there are {listed}. Received: {str(path)!r}")
    return chosen[-1]


def newest_of(path: str | os.PathLike[str]) -> str:
    """Return, for messages, what there is instead of the policy of a run that hasn't ended; "" for any other folder."""
    if not Path(path, "checkpoints").is_dir():
        return ""
    return f"; its newest checkpoint, {path}@latest, is for `evaluate`, `load_network` and `init_from`"


def _named(path: Path) -> tuple[str, str]:
    """Return a run and which of its checkpoints a path names."""
    if path.parent.name == "checkpoints" and path.name.isdecimal():
        return str(path.parent.parent), path.name
    base, _, which = str(path).rpartition("@")
    return base, which


def _is_best(checkpoint: Path) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((checkpoint / "run.json").read_bytes()).get("best") is True
    return False


def with_commit(run: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the address of a run on the Hub with the commit that it means now; a path as it is, a checkpoint's folder.

    Raises what `local_path` raises.
    """
    if not is_on_hub(run):
        found = local_path(run)
        return run if found == Path(run) else found
    commit = local_path(run).parent.name
    return f"hf://{_split(run)['repo']}@{commit}"


def may_mean(run: object, recorded: object) -> bool:
    """Return whether `recorded`, which `with_commit` returned, may have been `run`."""
    if not isinstance(run, str) or not isinstance(recorded, str):
        return False
    if not is_on_hub(run) or not is_on_hub(recorded):
        (base, which), folder = _named(Path(run)), Path(recorded)
        is_that = which in ("best", "latest") or (which.isdecimal() and folder.name == f"{int(which):010}")
        return is_that and folder.parent == Path(base) / "checkpoints"
    now, before = _split(run), _split(recorded)
    return now["repo"] == before["repo"] and not _COMMIT.fullmatch(now["revision"] or "")


def _split(run: object) -> re.Match[str]:
    if (address := _ADDRESS.fullmatch(str(run))) is None:
        raise ValueError(f"A run on the Hub is hf://owner/name or hf://owner/name@revision. Received: {run}")
    return address


def check_repository(name: str, value: object) -> str:
    """Return "owner/name". Raises ValueError for anything else; huggingface_hub looks at it more closely."""
    if not isinstance(value, str) or not re.fullmatch(_REPOSITORY, value):
        raise refusal(name, "owner/name of a repository on the Hugging Face Hub", value)
    return value


def hub_api(purpose: str) -> HfApi:
    """Return a client of the Hub, with the user's token if there is one. Raises ImportError, naming the extra."""
    check_package("huggingface_hub", purpose, "hub")
    from huggingface_hub import HfApi

    return HfApi(library_name=LIBRARY, library_version=__version__)


@contextlib.contextmanager
def hub_errors(given: str) -> Iterator[None]:
    """Raise any failure of huggingface_hub again, in one line that ends in what was given, without the token."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ValueError(
            f"The repository's owner must grant you access first, on its page. Received: {given}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        expected = (
            "The Hub has no such repository, or it is private and `hf auth login` or HF_TOKEN gives no access to it"
        )
        raise ValueError(f"{expected}. Received: {given}") from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"The repository has no such branch, tag or commit. Received: {given}") from error
    except errors.HFValidationError as error:
        raise ValueError(f"This can't be the name of a repository: {one_line(error)}. Received: {given}") from error
    except errors.LocalEntryNotFoundError as error:
        reason = "The Hub can't be reached, and the cache has no whole copy of the repository"
        raise ConnectionError(f"{reason} ({_without_token(error)}). Received: {given}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            reason = (
                f"The Hub refused it ({status}): `hf auth login` or HF_TOKEN must give a token with the right to do it"
            )
            raise PermissionError(f"{reason}. Received: {given}") from error
        raise ConnectionError(f"The Hub failed ({_without_token(error)}). Received: {given}") from error
    except Exception as error:  # of the HTTP client, the disk, or a download that was cut off
        raise ConnectionError(f"The Hub can't be used ({_without_token(error)}). Received: {given}") from error


def _without_token(error: BaseException) -> str:
    from huggingface_hub import get_token

    token = get_token()
    return one_line(error).replace(token, "TOKEN") if token else one_line(error)


def _copy_of(repo: str, commit: str) -> Path:
    """Return the folder of the plain files of a commit, which may not be there yet."""
    from huggingface_hub import cached_assets_path

    return cached_assets_path(LIBRARY, namespace=repo, subfolder=commit) / repo.partition("/")[2]


def _plain_copy(snapshot: Path, folder: Path) -> Path:
    """Return a folder with copies of what the links in a snapshot lead to; commits don't change, so it is kept."""
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
            copied = shutil.copytree(snapshot, Path(partial) / "run")
            try:
                copied.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was first
                    raise
    return folder
