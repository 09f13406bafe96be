#!/usr/bin/env bash
# Measures with PYTHON, whose packages those beside this file complete; WORK keeps what is compiled for later calls.
# Arguments: those of `scripts/measure gpu`, or `device` and those of `scripts/measure device`.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="${WORK:-$(mktemp -d)}"
mkdir -p "$work"
if [ ! -e "$work/cache" ]; then
    cp -r "$here/cache" "$work/cache" # of this user, and writable by no other
    chmod -R u=rwX,go= "$work/cache"
fi
export ACTOR_LEARNER_CACHE="$work/cache" KERAS_BACKEND=jax MUJOCO_GL=disable PYTHONPATH="$here/source"
topic=(gpu --backend jax)
if [ "${1:-}" = device ]; then
    topic=(device --device gpu)
    shift
fi
exec "${PYTHON:-python3}" -P -m benchmarks "${topic[@]}" "$@"
