"""hf://owner/name: what is downloaded from a Hub on the loopback by the real client, and what is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import actor_learner as al
from actor_learner.cli import main
from actor_learner.runs.directory import open_run
from actor_learner.system.hub import local_path
from actor_learner.system.installation import install_command
from tests.support.hub_server import Repository, running_hub

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'actor-learner[hub]'")

RUN = {"config.json": b"{}", "policy/policy.json": b"{}", "policy/weights.npy": b"weights" * 99}
FILES = {**RUN, "replay.mp4": b"film"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with running_hub(monkeypatch, tmp_path) as hub:
        hub.repositories["ann/run"] = Repository()
        hub.repositories["ann/run"].commit("main", FILES)
        yield hub


def contents(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_is_downloaded_once_as_plain_files_and_found_without_the_hub(hub):
    folder = local_path("hf://ann/run")
    assert contents(folder) == RUN
    assert not any(file.is_symlink() for file in folder.rglob("*"))
    hub.requests.clear()
    assert open_run("hf://ann/run").path == folder == local_path(Path("hf://ann/run"))
    assert not any("/resolve/" in request for request in hub.requests)
    hub.shutdown()
    hub.server_close()
    assert local_path("hf://ann/run") == folder


def test_a_newer_commit_is_downloaded_and_an_earlier_one_keeps_its_address(hub):
    repository = hub.repositories["ann/run"]
    earlier, before = repository.branches["main"], local_path("hf://ann/run")
    repository.commit("main", {**FILES, "config.json": b'{"seed": 1}'})
    assert (local_path("hf://ann/run") / "config.json").read_bytes() == b'{"seed": 1}'
    assert local_path(f"hf://ann/run@{earlier}") == before


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://ann", r"A run on the Hub is hf://owner/name or hf://owner/name@revision. Received: hf://ann$"),
        ("hf://ann/run@", "A run on the Hub is"),
        ("hf://ann/a--b", "can't be the name of a repository: .* Received: hf://ann/a--b$"),
        ("hf://ann/none", "The Hub has no such repository, or it is private .* Received: hf://ann/none$"),
        ("hf://ann/run@v2", "no such branch, tag or commit. Received: hf://ann/run@v2$"),
        ("hf://ann/book", "The repository holds no run"),
    ],
)
def test_an_address_without_a_run_is_refused_in_one_line(hub, address, message):
    hub.repositories["ann/book"] = Repository()
    hub.repositories["ann/book"].commit("main", {"README.md": b"A book"})
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}"):
        local_path(address)


def test_a_download_that_was_cut_off_is_an_error_and_leaves_no_run(hub, tmp_path):
    hub.cut_off.add("policy/weights.npy")
    with pytest.raises(ConnectionError, match=r"^The Hub can't be used \(.*weights.*\). Received: hf://ann/run$"):
        local_path("hf://ann/run")
    assert not (tmp_path / "assets").exists()
    hub.cut_off.clear()
    assert contents(local_path("hf://ann/run"))["policy/weights.npy"] == FILES["policy/weights.npy"]


def test_a_file_that_was_damaged_before_it_was_pushed_is_no_policy(hub):
    with pytest.raises(ValueError, match="damaged: 'manifest.json' is missing.*ann--run"):
        al.load_policy("hf://ann/run")


def test_a_hub_out_of_reach_is_named_without_the_token(hub, monkeypatch):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(
        ConnectionError, match="can't be reached, and the cache has no whole copy.*hf://ann/run$"
    ) as error:
        local_path("hf://ann/run")
    assert "hf_w" not in str(error.value)


def test_a_missing_package_and_a_folder_to_write_to_are_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=re.escape(install_command("actor-learner[hub]"))):
        al.load_policy("hf://ann/run")
    assert main(["train", "--run-dir", "hf://ann/run"]) == 2
    assert "`--run-dir` must be a folder of this machine" in capsys.readouterr().err
    assert not Path("hf:").exists()
