# Sourced by the scripts beside it: finds Python, makes the project's environment, installs what is locked.
# shellcheck shell=bash

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Python keeps what it compiles, whatever the shell says: these scripts start it hundreds of times.
unset PYTHONDONTWRITEBYTECODE
locked="3.14 3.13 3.12 3.11" # a lock for each in scripts/lock, newest first

# Prints the version of the Python $1 ("3.13"), or fails where that does not run.
python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Is version $1 at least version $2?
at_least() {
    [ "${1%.*}" -gt "${2%.*}" ] || { [ "${1%.*}" -eq "${2%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }
}

# Can the Python $1 make an environment that has pip? (Debian ships venv without ensurepip.)
has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Prints a Python that can make environments, of the newest version found of those given, or fails. Fails with 2
# after a message where there are such versions, but all of them lack venv or pip.
find_python() {
    local version candidate bare=""
    for version in "$@"; do
        for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
            python3; do
            if [ "$(python_version "$candidate")" != "$version" ]; then continue; fi
            if has_venv "$candidate"; then
                command -v "$candidate"
                return 0
            fi
            bare=${bare:-$candidate}
        done
    done
    [ -z "$bare" ] && return 1
    no_venv "$bare"
    return 2
}

# Says what to install where the Python $1 cannot make environments.
no_venv() {
    echo "Python $(python_version "$1") ($(command -v "$1")) has no venv or no pip: install them and try again" \
        "(Debian, Ubuntu: apt install python$(python_version "$1")-venv or python3-venv)." >&2
}

# make_environment FOLDER EXTRAS PYTHON: a virtual environment with the project (editable) and its extras,
# as locked in scripts/lock. Does nothing where that has been done for the same lock and metadata. A Python
# without a lock, newer than all of them, gets the newest packages instead.
make_environment() {
    local folder=$1 extras=$2 python=$3 version lock stamp constraint=()
    version=$(python_version "$python")
    lock="$project/scripts/lock/python$version.txt"
    if [ -e "$lock" ]; then
        constraint=(--constraint "$lock")
    else
        lock=/dev/null
    fi
    stamp=$(cat "$lock" "$project/pyproject.toml" <(echo "$python") | cksum)
    if [ "$(cat "$folder/.installed-$extras" 2>/dev/null)" = "$stamp" ]; then return 0; fi
    echo "Installing into ${folder#"$project"/} …"
    if [ "$lock" = /dev/null ]; then
        echo "Python $version is newer than every lock (${locked%% *} is the newest): the newest packages are installed, which were not tested together."
    fi
    if [ "$(python_version "$folder/bin/python")" != "$version" ]; then
        rm -rf "$folder"
        "$python" -m venv "$folder"
    fi
    rm -f "$folder"/.installed-*
    # Python compiles what is imported, when it is first imported. Compiling all of it takes as long as the rest.
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$folder/bin/python" -m pip install --quiet --no-compile \
        ${constraint[@]+"${constraint[@]}"} --editable "$project${extras:+[$extras]}"
    echo "$stamp" | tee "$folder/.installed-" >"$folder/.installed-$extras"
}

# Sets `python` to the newest Python that has a lock, else to a `python3` newer than those, and says which.
choose_python() {
    local version status=0
    # shellcheck disable=SC2086  # one argument a version
    python=$(find_python $locked) || status=$?
    if [ "$status" = 2 ]; then exit 1; fi
    if [ "$status" = 1 ]; then
        if ! version=$(python_version python3); then
            echo "No Python was found: install one (${locked##* } or newer) and try again." >&2
            exit 1
        fi
        if ! at_least "$version" "${locked##* }"; then
            echo "Python $version ($(command -v python3)) is too old: install ${locked##* } or newer and try again." >&2
            exit 1
        fi
        if ! has_venv python3; then
            no_venv python3
            exit 1
        fi
        python=$(command -v python3)
    fi
    echo "Python: $("$python" --version | cut -d' ' -f2) ($python)"
}
