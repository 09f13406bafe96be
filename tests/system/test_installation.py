"""The shell command that adds a package to this installation, by the way in which this one was installed."""

import importlib.metadata
import json
import sys
import types

import pytest

from actor_learner.system.installation import install_command


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"dir_info": {"editable": True}}, "pip install --editable '{folder}[hub]'"),
        ({"dir_info": {}}, "pip install '{folder}[hub]'"),
        ({"archive_info": {}}, "pip install 'actor-learner[hub]'"),
        (None, "pip install 'actor-learner[hub]'"),
    ],
)
def test_an_extra_is_installed_as_this_package_was(origin, command, tmp_path, monkeypatch):
    folder = tmp_path / "a clone"
    folder.mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # without a pip of its own
    text = None if origin is None else json.dumps({"url": folder.as_uri(), **origin})
    found = types.SimpleNamespace(read_text=lambda name: text if name == "direct_url.json" else "")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    monkeypatch.setenv("PATH", str(tmp_path))
    pip = tmp_path / "pip"
    pip.write_text("")
    pip.chmod(0o700)
    assert install_command("actor-learner[hub]") == command.format(folder=folder)
    assert install_command("minatar") == "pip install minatar"
    monkeypatch.chdir(folder)
    assert install_command("actor-learner[hub]") == command.format(folder=".")
    folder.rename(tmp_path / "moved")
    assert install_command("actor-learner[hub]") == "pip install 'actor-learner[hub]'"


def test_a_pip_of_another_installation_is_not_named(tmp_path, monkeypatch):
    for folder in ("ours", "other"):
        (tmp_path / folder / "bin").mkdir(parents=True)
        pip = tmp_path / folder / "bin" / "pip"
        pip.write_text("")
        pip.chmod(0o700)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "ours"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))
    assert install_command("minatar") == "ours/bin/pip install minatar"
    monkeypatch.setenv("PATH", str(tmp_path / "ours" / "bin"))
    assert install_command("minatar") == "pip install minatar"
