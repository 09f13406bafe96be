#!/usr/bin/env bash
# Makes .venv beside pyproject.toml, or updates it. Does nothing, quickly, when it is complete.
# Usage: setup_venv.sh run|dev [NAME], where messages begin with NAME. PYTHON names the interpreter to make it with.
set -euo pipefail

kind="$1"
name="${2:-scripts/setup_venv.sh}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"
log="$venv/setup.log"

say() { printf '%s: %s\n' "$name" "$*" >&2; }
die() {
    say "$@"
    exit 1
}

# The inputs of an installation: a changed pyproject.toml or a moved folder requires a new one.
fingerprint() { printf '%s\n%s\n' "$(cksum <"$root/pyproject.toml")" "$root"; }
is_ready() { [ ! -e "$venv/.incomplete" ] && [ "$(cat "$venv/.ready-$1" 2>/dev/null)" = "$(fingerprint)" ]; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
is_supported() { case "$1" in 3.11 | 3.12 | 3.13) true ;; *) false ;; esac }

find_python() {
    local candidate version found="" candidates=(python3.13 python3.12 python3.11 python3 python)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        version="$(version_of "$candidate")" || continue
        if ! is_supported "$version"; then
            found="$found, $candidate is $version"
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            found="$found, $candidate has no venv module (Debian: apt install python$version-venv)"
        else
            python="$candidate"
            return
        fi
    done
    die "needs Python 3.11, 3.12 or 3.13 (TensorFlow has wheels for these only)${found:-, found none}." \
        "Install Python 3.13, or name one: PYTHON=/path/to/python3.13 $name"
}

# An interrupted set-up starts again; a .venv of another origin is never deleted.
make_venv() {
    if [ -e "$venv/.incomplete" ] || { [ -e "$venv/.root" ] && [ "$(cat "$venv/.root")" != "$root" ]; }; then
        rm -rf "$venv"
    fi
    if [ -e "$venv" ]; then
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 || die "$venv doesn't work (no pip in it): remove it."
        is_supported "$(version_of "$venv/bin/python")" ||
            die "$venv has Python $(version_of "$venv/bin/python"), but 3.11, 3.12 or 3.13 is needed: remove it."
        return
    fi
    find_python
    say "making $venv with $python ($(version_of "$python"))"
    mkdir "$venv"
    printf '%s\n' "$root" >"$venv/.root"
    touch "$venv/.incomplete"
    "$python" -m venv "$venv" || die "can't make $venv with $python."
}

show_progress() {
    local line
    while IFS= read -r line; do
        case "$line" in
        *Downloading*MB\)*) printf '    %s\n' "$(sed -E 's/^ *Downloading //; s/-[^ ]*\.whl\.?[a-z]*//' <<<"$line")" ;;
        "Installing collected packages"*) printf '    unpacking %s packages\n' "$(wc -w <<<"${line#*: }")" ;;
        esac
    done >&2
}

install() {
    local was_complete=""
    if [ ! -e "$venv/.incomplete" ]; then was_complete=yes; fi
    touch "$venv/.incomplete"
    say "installing TensorFlow, Keras, Gymnasium and others with pip (about 700 MB, some minutes; log: $log)"
    export PIP_RETRIES="${PIP_RETRIES:-2}" # by environment: pip does not hand flags on to the pip of an isolated build
    if ! (cd "$root" && "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --editable ".[$kind]" 2>&1) | tee "$log" | show_progress; then
        if [ -n "$was_complete" ]; then rm -f "$venv/.incomplete"; fi
        explain_failure
    fi
    if [ "$kind" = dev ]; then install_converter; fi
    rm -f "$venv/.incomplete"
    fingerprint >"$venv/.ready-run"
    if [ "$kind" = dev ]; then fingerprint >"$venv/.ready-dev"; else rm -f "$venv/.ready-dev"; fi
}

# Without its dependencies, which hold back others (typing-extensions) and serve a part of it that isn't used here.
install_converter() {
    local requirement
    requirement="$(sed -n 's/.*"\(litert-converter[^"]*\)".*/\1/p' "$root/pyproject.toml")"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off --quiet --no-deps \
        "$requirement" >>"$log" 2>&1 || say "no $requirement for this machine: its tests will be skipped"
}

explain_failure() {
    # pip prints "from versions: none" when it gives up without mentioning the connection.
    if grep -qiE 'name resolution|NewConnectionError|Connect(ion)? ?Timeout|unreachable|ProxyError|from versions: none' \
        "$log"; then
        die "no network: pip can't reach the package index. Try again when it is there (log: $log)."
    fi
    die "pip failed: $(grep -E '^ *(ERROR|error|OSError)' "$log" | tail -1) (log: $log)"
}

if is_ready "$kind"; then exit 0; fi
exec 9<"$root/pyproject.toml"
if command -v flock >/dev/null && ! flock --nonblock 9; then
    say "waiting for another set-up of $venv"
    flock 9
fi
if is_ready "$kind"; then exit 0; fi
make_venv
install
say "set-up done"
