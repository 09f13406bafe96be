"""A trained policy behind a small HTTP endpoint. Standard library, NumPy and LiteRT: no TensorFlow in this process.

    python examples/serve_policy.py RUN_DIR [PORT]
    curl localhost:8000/act --data '[0.01, 0.02, -0.03, 0.04]'

The body is one observation or a batch of them, as JSON: lists, or an object with the keys of a Dict space. A policy
that remembers takes one observation of a session, `/act?session=NAME`; with `&start=1` an episode starts with it.
A mask of allowed actions is JSON too: `/act?action_mask=[1,0]`, with one row for each observation of a batch.
"""

import json
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

import numpy as np

import actor_learner as al

MAX_SESSIONS = 10_000


def as_arrays(value):
    """Convert a JSON value: lists to arrays, objects to dicts."""
    return {key: as_arrays(part) for key, part in value.items()} if isinstance(value, dict) else np.asarray(value)


def make_server(policy: al.Policy, port: int) -> ThreadingHTTPServer:
    lock = Lock()  # a policy serves one thread at a time
    first = policy.initial_state()  # () without memory
    states = OrderedDict()  # of the latest sessions

    def act(observation, session="", start="0", action_mask="null"):
        mask = json.loads(action_mask)
        if not first:
            return policy.act(observation, action_mask=mask)
        known = states.pop(session, None) if start == "0" else None
        start = known is None
        action, states[session] = policy.act(observation, action_mask=mask, start=start, state=known or first)
        if len(states) > MAX_SESSIONS:
            states.popitem(last=False)
        return action

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
                observation = as_arrays(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                with lock:
                    self.answer(200, {"action": act(observation, **query)})
            except (TypeError, ValueError) as error:  # not JSON, or not an observation of the policy's space
                self.answer(400, {"error": str(error)})

        def answer(self, status, content):
            content = json.dumps(content, default=lambda array: array.tolist()).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return ThreadingHTTPServer(("127.0.0.1", port), Endpoint)


def main(run_dir: str, port: int = 8000) -> None:
    server = make_server(al.load_policy(run_dir), port)
    print(f"http://127.0.0.1:{server.server_port}/act", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
