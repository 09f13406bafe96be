#!/usr/bin/env bash
# Installs the wheels beside this file into a virtual environment over PYTHON's packages, and measures.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
work="${WORK:-$(mktemp -d)}"
if [ ! -e "$work/ready" ]; then
    "$python" -m venv --system-site-packages "$work/venv"
    # PYTHON may be of a virtual environment itself, whose packages a new one doesn't see.
    "$python" -c 'import site; print("\n".join(site.getsitepackages()))' >"$work/packages"
    cp "$work/packages" "$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/beneath.pth"
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$here"/wheels/*.whl
    cp -r "$here/cache" "$work/cache" # of this user, and writable by no other
    chmod -R u=rwX,go= "$work/cache"
    touch "$work/ready"
fi
export ACTOR_LEARNER_CACHE="$work/cache" KERAS_BACKEND=jax MUJOCO_GL=disable PYTHONPATH="$here/source"
exec "$work/venv/bin/python" -m benchmarks gpu --backend jax "$@"
