# Sourced by the scripts beside it: finds Python, makes the project's environment, installs what is locked.
# shellcheck shell=bash

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Does $1 run, and is it one of the versions that follow (3.13, 3.12, …)?
is_python() {
    local version
    version=$("$1" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
    shift
    local wanted
    for wanted in "$@"; do [ "$version" = "$wanted" ] && return 0; done
    return 1
}

# Prints the newest Python found of the versions given, or fails.
find_python() {
    local version candidate
    for version in "$@"; do
        for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
            python3; do
            if is_python "$candidate" "$version"; then
                command -v "$candidate"
                return 0
            fi
        done
    done
    return 1
}

# make_environment FOLDER EXTRAS PYTHON: a virtual environment with the project (editable) and its extras,
# as locked in scripts/lock. Does nothing where that has been done for the same lock and metadata.
make_environment() {
    local folder=$1 extras=$2 python=$3 version lock stamp
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    lock="$project/scripts/lock/python$version.txt"
    stamp=$(cat "$lock" "$project/pyproject.toml" <(echo "$python") | cksum)
    if [ "$(cat "$folder/.installed-$extras" 2>/dev/null)" = "$stamp" ]; then return 0; fi
    echo "Installing into ${folder#"$project"/} …"
    if ! is_python "$folder/bin/python" "$version"; then
        rm -rf "$folder"
        "$python" -m venv "$folder"
    fi
    rm -f "$folder"/.installed-*
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$folder/bin/python" -m pip install --quiet \
        --constraint "$lock" --editable "$project${extras:+[$extras]}"
    echo "$stamp" | tee "$folder/.installed-" >"$folder/.installed-$extras"
}

# Sets `python` to the newest supported Python, and says which.
choose_python() {
    if ! python=$(find_python 3.13 3.12 3.11); then
        echo "No Python 3.11, 3.12 or 3.13 found; the newest of them is used: install one and try again." >&2
        exit 1
    fi
    echo "Python: $("$python" --version | cut -d' ' -f2) ($python)"
}
