"""Looks for aborts: short runs that compile anew, under allocators that notice damage, most of them interrupted.

    scripts/measure aborts --minutes 60 --output benchmarks/faults/aborts.json

Each run of the command line has a compile cache of its own, which is empty, and twice as many runs as there are cores
work at once. A quarter of them end by themselves, the others by SIGINT, SIGHUP or SIGTERM right after the first update.
An event is another exit code than that calls for, a line of an allocator or of Python about damage, or a dead actor.
Scudo is used where clang's runtime libraries are installed (Debian: libclang-rt-dev). Exits with 1 after an event.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from actor_learner.runs.provenance import provenance
from actor_learner.system.machine import available_cores
from benchmarks.harness import ROOT, Figures, flag_words, make_parser, origin, report, tell
from benchmarks.processes import Child

EXIT_CODES = {"end": 0, "SIGINT": 130, "SIGHUP": 129, "SIGTERM": 143}
DEADLINE_SECONDS = 600.0
_MAX_DELAY_SECONDS = 0.1  # seconds from the first update to the signal
_MAX_TEXT = 8000
_SIZES = {"num_actors": 2, "envs_per_actor": 4, "unroll_length": 32, "minibatch_size": 64, "epochs": 2}
_STEPS = {True: 8 * 256, False: 10**9}  # of a run that ends by itself, and of one that is interrupted
_DAMAGE = re.compile(r"corrupt|Fatal Python error|Scudo ERROR|GWP-ASan|free\(\)|malloc\(\)|realloc\(\)|ended by SIG")
_SCUDO = "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.scudo_standalone-x86_64.so"
_SCUDO_OPTIONS = (  # freed memory is kept for a while, and a part of all blocks lies at the edge of a page of its own
    "quarantine_size_kb=65536:thread_local_quarantine_size_kb=1024:quarantine_max_chunk_size=4096:"
    "GWP_ASAN_SampleRate=500:GWP_ASAN_MaxSimultaneousAllocations=1024"
)


def allocators() -> dict[str, dict[str, str]]:
    """Return the environment variables of each allocator; Python's own small blocks come from it, too."""
    found = {
        "glibc without caches": {
            "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0:glibc.malloc.perturb=165"
        },
        "glibc with checks": {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"},
    }
    if libraries := sorted(map(str, Path("/").glob(_SCUDO[1:]))):
        found["scudo"] = {"LD_PRELOAD": libraries[-1], "SCUDO_OPTIONS": _SCUDO_OPTIONS}
    return {name: {"PYTHONMALLOC": "malloc", **variables} for name, variables in found.items()}


@dataclass
class Run:
    """One run of the command line, in a folder of its own. how: a key of `EXIT_CODES`."""

    folder: Path
    allocator: str
    how: str
    delay: float
    seed: int

    def result(self) -> Figures:
        """Run it; return the seconds that it took, and the "event", or None."""
        started = time.monotonic()
        environment = {**os.environ, **allocators()[self.allocator], **self._variables()}
        child = Child(self._command(), self.folder / "output", environment)
        metrics = self.folder / "run/metrics.jsonl"
        try:
            if self.how != "end" and child.wait_until(lambda: _size(metrics), DEADLINE_SECONDS):
                check_signals(child.process.pid)
                time.sleep(self.delay)
                child.process.send_signal(signal.Signals[self.how])
            code: int | None = child.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.end()
        found = {"seconds": time.monotonic() - started, "event": self._event(code)}
        shutil.rmtree(self.folder)
        return found

    def _command(self) -> list[str]:
        flags = {**_SIZES, "preset": "none", "total_steps": _STEPS[self.how == "end"], "seed": self.seed}
        words = flag_words({**flags, "run_dir": self.folder / "run"})
        return [sys.executable, "-P", "-m", "actor_learner.cli", "train", "CartPole-v1", *words, "--quiet"]

    def _variables(self) -> dict[str, str]:
        return {"ACTOR_LEARNER_CACHE": str(self.folder / "cache"), "PYTHONPATH": str(ROOT)}

    def _event(self, code: int | None) -> Figures | None:
        files = [self.folder / "output", *sorted((self.folder / "run/logs").glob("*.log"))]
        texts = {file.name: file.read_text(errors="replace") for file in files}
        if code == EXIT_CODES[self.how] and not any(map(_DAMAGE.search, texts.values())):
            return None
        tails = {name: text[-_MAX_TEXT:] for name, text in texts.items() if text}
        return {"allocator": self.allocator, "how": self.how, "exit_code": code, "texts": tails}


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def check_signals(pid: int) -> None:
    """Raise RuntimeError if a process ignores one of the signals, as those that a shell starts with `&` do."""
    (ignored,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    for name in EXIT_CODES.keys() - {"end"}:
        if int(ignored, 16) >> (signal.Signals[name] - 1) & 1:
            raise RuntimeError(f"The runs must not ignore signals. Received: {name} is ignored by process {pid}")


def restore_signals() -> None:
    """Give the runs signals in their default state: one that is ignored here would be ignored there, too."""
    for name in EXIT_CODES.keys() - {"end"}:
        if signal.getsignal(number := signal.Signals[name]) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # still without effect here, but not inherited


def plan(folder: Path, names: list[str], seed: int) -> Iterator[Run]:
    """Yield runs without end: each allocator by turns, with each way to end."""
    chance = random.Random(seed)
    for number, (how, name) in enumerate(itertools.cycle(itertools.product(EXIT_CODES, names))):
        yield Run(folder / str(number), name, how, chance.uniform(0, _MAX_DELAY_SECONDS), seed + number)


def main() -> int:
    """Run, count and write. Returns 1 after an event."""
    parser = make_parser("aborts", __doc__ or "", minutes=60.0, seed=0)
    parser.add_argument("--runs", type=float, default=math.inf, help="the most runs (default: no limit)")
    parser.add_argument("--at-once", type=int, default=2 * available_cores(), help="default: twice the cores")
    arguments = parser.parse_args()
    restore_signals()
    names, counts, lock, started = list(allocators()), Counter[str](), threading.Lock(), time.monotonic()
    events: list[Figures] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="aborts-") as folder:
        runs = plan(Path(folder), names, arguments.seed)

        def work() -> None:
            while time.monotonic() < started + 60 * arguments.minutes:
                with lock:
                    run = next(runs)
                if int(run.folder.name) >= arguments.runs:
                    return
                run.folder.mkdir()
                result = run.result()
                with lock:
                    counts[kind := f"{run.allocator}, {run.how}"] += 1
                    seconds.append(result["seconds"])
                    events.extend(filter(None, [result["event"]]))
                    tell(f"{counts.total():5} {kind}: {result['seconds']:.1f} s, {len(events)} events")

        with ThreadPoolExecutor(arguments.at_once) as threads:
            list(threads.map(lambda _: work(), range(arguments.at_once)))
    total = counts.total()
    found = {
        "versions": provenance()["versions"],
        "minutes": round((time.monotonic() - started) / 60, 1),
        "at_once": arguments.at_once,
        "runs": total,
        "runs_by_kind": dict(sorted(counts.items())),
        "seconds_of_a_run": round(sum(seconds) / total, 1),
        "events": len(events),
        "seen_with_95_percent": f"an event of 1 in {1 / (1 - 0.05 ** (1 / total)):.0f} runs",
        "each_event": events,
    }
    report({**origin(parser), **found}, arguments.output)
    return 1 if events else 0
