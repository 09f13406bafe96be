"""Simulated hosts on this machine, each with its own network, processes, /dev/shm, /tmp/ray and name.

    scripts/hosts up A B C     # start hosts; the addresses are 10.77.0.1, 10.77.0.2, ...
    scripts/hosts ray A B      # start Ray on them, the head on the first one
    scripts/hosts run A -- COMMAND
    scripts/hosts cut B        # pull its cable; `heal B` puts it back
    scripts/hosts off B        # power it off
    scripts/hosts down         # end all of them

Needs Linux, root, iproute2 and util-linux. Nothing leaves: the hosts know one bridge, in a network of its own without a
way out. A host ends with the first process of its own; nothing else on the machine is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STATE = Path(tempfile.gettempdir(), "actor-learner-hosts")
PREFIX = "actor-learner-"
SWITCH = PREFIX + "switch"
RAY_PORT, RAY_FOLDER, SHARED_MEMORY = 6379, "/tmp/ray", "/dev/shm"  # noqa: S108 - these are theirs
UP_SECONDS, RAY_SECONDS = 10.0, 200.0
# The first process of a host reaps: beneath one that doesn't, Ray takes a killed process for a living one.
FIRST_PROCESS = """import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True: signal.pause()"""


@functools.cache
def unavailable() -> str | None:
    """Return why there can't be simulated hosts here; None if there can."""
    if sys.platform != "linux" or os.geteuid():
        return "simulated hosts need root on Linux"
    if missing := [tool for tool in ("ip", "unshare", "nsenter", "mount") if shutil.which(tool) is None]:
        return f"simulated hosts need {', '.join(missing)}"
    probe = ["unshare", "--net", "--pid", "--fork", "--mount", "--uts", "mount", "--make-rprivate", "/"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"simulated hosts need namespaces: {done.stderr.strip()}"
    network = f"{PREFIX}probe-{os.getpid()}"
    try:
        _ip("netns", "add", network)
    except subprocess.CalledProcessError as error:
        return f"simulated hosts need networks of their own: {error.stderr.strip()}"
    _ip("netns", "del", network)
    return None


def require(parser: argparse.ArgumentParser) -> None:
    """End the program with the reason if there can't be simulated hosts here."""
    if reason := unavailable():
        parser.error(reason)


@contextlib.contextmanager
def cluster(names: str, cpus: Mapping[str, int] | None = None) -> Iterator[None]:
    """Start hosts with Ray, its head on the first one, and end them. cpus: those that Ray may use, by default two."""
    down_all()
    try:
        for name in names:
            up(name)
            start_ray(name, names[0], cpus=(cpus or {}).get(name, 2))
        yield
    finally:
        down_all()


def module_on(name: str, module: str, *words: Any) -> dict[str, Any]:
    """Return arguments of `subprocess.run` for a module of the project on a host; without a name, on this machine."""
    command = ["python", "-W", "ignore", "-m", module, *map(str, words)]
    return {
        "args": inside(name, *command) if name else command,
        "env": environment(TF_CPP_MIN_LOG_LEVEL="3"),
        "text": True,
    }


def address(name: str) -> str:
    return f"10.77.0.{ord(name) - ord('A') + 1}"


def up(name: str) -> None:
    """Start a host."""
    if SWITCH not in _ip("netns", "list"):
        _ip("netns", "add", SWITCH)
        _ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
        _ip("-n", SWITCH, "link", "set", "br0", "up")
    network = PREFIX + name
    _ip("netns", "add", network)
    _ip("-n", SWITCH, "link", "add", f"to{name}", "type", "veth", "peer", "name", "eth0", "netns", network)
    _ip("-n", SWITCH, "link", "set", f"to{name}", "master", "br0", "up")
    _ip("-n", network, "addr", "add", f"{address(name)}/24", "dev", "eth0")
    for link in ("lo", "eth0"):
        _ip("-n", network, "link", "set", link, "up")
    STATE.mkdir(exist_ok=True)
    Path(RAY_FOLDER).mkdir(exist_ok=True)
    ready = STATE / f"{name}.ready"
    ready.unlink(missing_ok=True)
    mounts = "; ".join(f"mount -t tmpfs -o size=2g tmpfs {folder}" for folder in (SHARED_MEMORY, RAY_FOLDER))
    script = f"hostname host-{name}; mount --make-rprivate /; {mounts}; echo ready > {ready}; "
    script += f"exec {sys.executable} -I -S -c '{FIRST_PROCESS}'"
    flags = ["--pid", "--fork", "--kill-child", "--mount", "--uts", "--mount-proc"]
    holder = subprocess.Popen(
        ["ip", "netns", "exec", network, "unshare", *flags, "sh", "-c", script],
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
        start_new_session=True,
    )
    deadline = time.monotonic() + UP_SECONDS
    while not ready.exists():
        if time.monotonic() > deadline or holder.poll() is not None:
            raise TimeoutError(f"host {name} isn't up")
        time.sleep(0.02)
    (first,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    (STATE / name).write_text(first)


def first_process(name: str) -> int:
    return int((STATE / name).read_text())


def inside(name: str, *command: str) -> list[str]:
    """Return the words that run a command on a host."""
    return ["nsenter", "-t", str(first_process(name)), "-n", "-p", "-m", "-u", "--", *command]


def cut(name: str) -> None:
    """Pull a host's cable: it sees its link as before, but packets are lost at the switch."""
    _ip("-n", SWITCH, "link", "set", f"to{name}", "nomaster")


def heal(name: str) -> None:
    _ip("-n", SWITCH, "link", "set", f"to{name}", "master", "br0")


def power_off(name: str) -> None:
    os.kill(first_process(name), signal.SIGKILL)


def down(name: str) -> None:
    with contextlib.suppress(OSError):
        power_off(name)
    for words in (("-n", SWITCH, "link", "del", f"to{name}"), ("netns", "del", PREFIX + name)):
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(*words)
    for path in (STATE / name, STATE / f"{name}.ready"):
        path.unlink(missing_ok=True)


def names() -> list[str]:
    return sorted(path.name for path in STATE.glob("?")) if STATE.exists() else []


def down_all() -> None:
    for name in names():
        down(name)
    if SWITCH in _ip("netns", "list"):
        _ip("netns", "del", SWITCH)


def processes(name: str) -> dict[int, str]:
    """Return the command line of each process on a host, by its id outside."""
    try:
        here = os.readlink(f"/proc/{first_process(name)}/ns/pid")
    except OSError:  # it is off
        return {}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/pid") == here:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of programs on hosts."""
    root, scripts = str(Path(__file__).parents[1]), str(Path(sys.executable).parent)
    own = {"PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": root}
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    slow = {"RAY_raylet_start_wait_time_s": "120", "RAY_agent_register_timeout_ms": "120000"}
    return {**os.environ, **own, **ray, **slow, **variables}


def start_ray(name: str, head: str, *, cpus: int = 2) -> None:
    """Start Ray on a host; `head` names the one that leads the cluster."""
    words = [str(Path(sys.executable).with_name("ray")), "start", f"--node-ip-address={address(name)}"]
    words += [f"--num-cpus={cpus}", f"--object-store-memory={200 << 20}", "--disable-usage-stats", "--log-color=false"]
    if name == head:
        words += ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
    else:
        words.append(f"--address={address(head)}:{RAY_PORT}")
    done = subprocess.run(
        inside(name, *words),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RAY_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def main(command: str, *words: str) -> None:
    if command == "ray":
        for name in words:
            start_ray(name, words[0])
    elif command == "run":
        name, _, *program = words
        os.execvpe("nsenter", inside(name, *program), environment())  # noqa: S606 - so that signals reach it
    elif command == "down":
        down_all()
    else:
        for name in words:
            {"up": up, "cut": cut, "heal": heal, "off": power_off}[command](name)


if __name__ == "__main__":
    main(*sys.argv[1:])
