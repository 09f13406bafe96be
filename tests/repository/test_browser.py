"""The page in examples/browser, in headless Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import queue
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Discrete

import actor_learner as al
from actor_learner.networks import default
from tests.support.processes import patience
from tests.support.run_files import create_ended_run

BROWSER = Path(__file__).parents[2] / "examples" / "browser"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGE = """<script type="module">
const post = (result) => fetch("/result", { method: "POST", body: JSON.stringify(result) });
try {
  const { loadPolicy, play } = await import("./cartpole.js");
  await post(await play(await loadPolicy("policy.onnx"), () => {}, [0.01, -0.02, 0.03, 0.04]));
} catch (error) {
  await post({ error: String(error) });
}
</script>"""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
    pytest.mark.skipif(not (BROWSER / "node_modules").exists(), reason="needs `npm install` in examples/browser"),
]


class Site(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and puts what a page posts into the server's queue."""

    def do_POST(self):
        self.server.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def result_of_page(folder, profile):
    """Return what index.html of a folder posts."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=folder)) as server:
        server.results = queue.Queue()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
        quiet = ("--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}")
        port = ("--remote-debugging-port=0",)  # without it, headless Chromium ends when the page has loaded
        url = f"http://127.0.0.1:{server.server_port}/index.html"
        with subprocess.Popen([CHROMIUM, *flags, *quiet, *port, url], stderr=subprocess.DEVNULL) as browser:
            try:
                return server.results.get(timeout=patience(60))
            finally:
                browser.terminate()
                server.shutdown()


def test_the_page_acts_as_the_policy_and_moves_as_gymnasium(tmp_path):
    pytest.importorskip("tf2onnx", reason="needs tf2onnx")
    space, actions = Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)
    network = default.default_network(space, actions, hidden_sizes=(8,), seed=1)
    network.set_weights(
        [weight + 0.3 * np.sin(np.arange(weight.size)).reshape(weight.shape) for weight in network.get_weights()]
    )
    run = create_ended_run(tmp_path / "run", space, actions, network)
    site = al.export(run, tmp_path / "site", format="onnx")
    for name in ("cartpole.js", "node_modules"):
        (site / name).symlink_to(BROWSER / name)
    (site / "index.html").write_text(PAGE)
    played = result_of_page(site, tmp_path / "profile")
    assert "error" not in played, played
    observations = np.array(played["observations"], np.float32)
    np.testing.assert_array_equal(played["actions"], al.load_policy(run).act(observations))
    env = CartPoleEnv()
    env.reset()
    env.state = np.array([0.01, -0.02, 0.03, 0.04])
    for observation, action in zip([*observations[1:], played["state"]], played["actions"], strict=True):
        moved, _, terminated, *_ = env.step(action)
        np.testing.assert_allclose(moved, np.array(observation, np.float32), atol=1e-6)
    assert terminated == played["terminated"]
    assert terminated or len(played["actions"]) == 500
