"""Batches and final weights on one, two and three pretended hosts of a Ray cluster: are they the same bytes?

    scripts/measure cluster-same-bytes --output benchmarks/cluster/same_bytes.json    # 6 minutes; needs root

Four actors collect at lag 0 and 1, and a learner updates a network by PPO; without Ray first. A digest is of every
field of every batch, and of the final weights. Hosts are benchmarks/hosts.py's, with two CPUs each; the learner is on
the first one. The exit code is 1 if a digest differs.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks import hosts
from benchmarks.harness import Found, make_parser, origin, report, tell

SECONDS = 600.0
HOSTS = "ABC"


def main() -> int:
    parser = make_parser("cluster-same-bytes", __doc__ or "", batches=8)
    arguments = parser.parse_args()
    if reason := hosts.unavailable():
        parser.error(reason)
    found = {f"hosts: {count}": digests(count, arguments.batches) for count in range(len(HOSTS) + 1)}
    alone = {work: row["digest"] for work, row in found["hosts: 0"].items()}
    others = [
        f"{work}, {where}"
        for where, rows in found.items()
        for work, row in rows.items()
        if row["digest"] != alone[work]
    ]
    report({**origin(parser), "batches": arguments.batches, "others": others, **found}, arguments.output)
    return int(bool(others))


def digests(count: int, batches: int) -> Found:
    """Return each work's digest on so many hosts, and which of them had actors. count: 0 for a machine without Ray."""
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.cluster.digests", str(batches), "auto" if count else ""]
    hosts.down_all()
    try:
        for host in HOSTS[:count]:
            hosts.up(host)
            hosts.start_ray(host, HOSTS[0])
        command = hosts.inside(HOSTS[0], *words) if count else words
        variables = hosts.environment(TF_CPP_MIN_LOG_LEVEL="3")
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:
        hosts.down_all()
    if done.returncode:
        raise RuntimeError(done.stderr)
    tell(f"{count} hosts: done")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found
