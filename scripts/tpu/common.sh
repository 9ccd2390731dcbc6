# Sourced by the scripts beside it: their common options, the calls of gcloud, and what a failed call means.
# It runs on macOS too, so it keeps to bash 3.2.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts that source this use what it sets

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=$(basename "$0")
name="" zone="" project_id="" workers="" run_name=batch destination="" dry_run=0 place=() run_options=() words=() rest=()
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

common_options="
  --zone ZONE        the TPU's zone (default: gcloud's compute/zone)
  --project PROJECT  the project (default: gcloud's)
  --dry-run          print the commands, run nothing
  --help             show this"

# Says what is wrong in one line and ends the script: with 2 for wrong arguments, 1 for what failed, 3 for a TPU
# that was preempted.
fail() {
    local status=$1
    shift
    echo "tpu/$script: $*" >&2
    exit "$status"
}

# Prints its arguments as one line that a shell reads back as the same arguments. Of --option=value only the value
# gets quotes.
quoted() {
    local word option line=""
    for word in "$@"; do
        option=""
        if [[ $word =~ ^--[a-z-]+= ]]; then
            option=${BASH_REMATCH[0]}
            word=${word#"$option"}
        fi
        case $word in
            *[!A-Za-z0-9_./:=@%+,-]*) word="'${word//\'/\'\\\'\'}'" ;;
            "") [ -n "$option" ] || word="''" ;;
        esac
        line+="${line:+ }$option$word"
    done
    printf '%s\n' "$line"
}

# parse_options ARGUMENTS…: sets the variables above; words are the arguments behind the name, rest are those behind
# "--". Options of one script alone are taken by its function own_option, which sets `taken` to the number of
# arguments that it used.
parse_options() {
    local taken
    while [ $# -gt 0 ]; do
        case $1 in
            --help | -h) usage && exit 0 ;;
            --)
                shift
                rest=("$@")
                break
                ;;
            --*=*)
                set -- "${1%%=*}" "${1#*=}" "${@:2}"
                continue
                ;;
        esac
        taken=0
        own_option "$@"
        case $1 in
            --zone) need_value "$@" && zone=$2 ;;
            --project) need_value "$@" && project_id=$2 ;;
            --dry-run) dry_run=1 taken=1 ;;
            --*) [ "$taken" -gt 0 ] || fail 2 "there is no option $1: see tpu/$script --help" ;;
            *)
                taken=1
                if [ -z "$name" ]; then name=$1; else words+=("$1"); fi
                ;;
        esac
        shift "$taken"
    done
    [ -n "$name" ] || fail 2 "the name of the TPU is missing: see tpu/$script --help"
    [[ $name =~ ^[a-z]([-a-z0-9]{0,60}[a-z0-9])?$ ]] ||
        fail 2 "$(quoted "$name") is no name of a TPU: it has small letters, digits and -, and begins with a letter"
    [[ $run_name =~ ^[a-z0-9][-a-z0-9]{0,39}$ ]] ||
        fail 2 "--run $(quoted "$run_name"): it must be at most 40 small letters, digits and -"
    [[ $workers =~ ^([1-9][0-9]{0,3})?$ ]] || fail 2 "--workers $(quoted "$workers"): it must be a number from 1"
    destination=${destination:-out/tpu/$name/$run_name}
    case $destination in -*) destination=./$destination ;; esac
    if [ -n "$zone" ]; then place+=("--zone=$zone"); fi
    if [ -n "$project_id" ]; then place+=("--project=$project_id"); fi
    [ "$dry_run" = 1 ] || command -v gcloud >/dev/null ||
        fail 2 "gcloud is not installed: see https://cloud.google.com/sdk/docs/install"
}

# For own_option: the option $1 needs a value.
need_value() {
    [ $# -ge 2 ] || fail 2 "$1 needs a value: see tpu/$script --help"
    taken=2
}

# For own_option: the options of the scripts that know runs and workers.
run_option() {
    case $1 in
        --run) need_value "$@" && run_name=$2 && run_options+=("--run=$2") ;;
        --workers) need_value "$@" && workers=$2 ;;
        --to) need_value "$@" && destination=$2 && run_options+=("--to=$2") ;;
    esac
}

# Prints how the script $1 is called for this TPU.
command_line() {
    quoted "scripts/tpu/$1" "$name" ${place[@]+"${place[@]}"} "${@:2}"
}

# gcloud_tpus ERRORS ARGUMENTS…: gcloud compute tpus ARGUMENTS…, which asks nothing; its standard error goes to the
# file ERRORS. With --dry-run it is printed and not run.
gcloud_tpus() {
    local errors=$1
    shift
    if [ "$dry_run" = 1 ]; then
        quoted gcloud compute tpus "$@" --quiet ${place[@]+"${place[@]}"}
    else
        gcloud compute tpus "$@" --quiet ${place[@]+"${place[@]}"} </dev/null 2>"$errors"
    fi
}

# Prints in one line what the errors of gcloud in the file $1 mean and what to do next.
meaning() {
    local text
    text=$(tr '\r' '\n' <"$1" | sed -n '/^ERROR:/,$p')
    if [ -z "$text" ]; then # the command on the worker failed: the last that it said is its reason
        text=$(tr '\r' '\n' <"$1" | grep -v -e '^SSH: ' -e '^SCP: ' -e '^Using s[sc][hp] batch' -e '^ *$' | tail -1)
        echo "${text:-it failed without a word}"
        return
    fi
    case $text in
        *'state "PREEMPTED"'* | *'state "TERMINATED"'*)
            echo "$name was preempted, and its disk is gone with it. $(preempted_next)"
            return
            ;;
        *uota*) echo -n "there is no quota for it: ask for more (console, IAM, Quotas, Cloud TPU API), or take another zone or type" ;;
        *capacity* | *RESOURCE_EXHAUSTED* | *'code": 8'*) echo -n "the zone has none free now: try later, in another zone, or with --queued, which waits in line" ;;
        *'is not currently set'* | *'Missing required argument [zone]'*) echo -n "no zone is set: give --zone" ;;
        *'auth login'* | *'active account'*) echo -n "gcloud is not signed in: run gcloud auth login" ;;
        *'has not been used in project'* | *SERVICE_DISABLED*) echo -n "the project has no Cloud TPU API: run gcloud services enable tpu.googleapis.com" ;;
        *PERMISSION_DENIED* | *'does not have permission'*) echo -n "this account may not: ask for the role TPU Admin, or give another --project" ;;
        *ALREADY_EXISTS* | *'already exists'*) echo -n "there is a $name already: use it, or run $(command_line delete)" ;;
        *NOT_FOUND* | *'was not found'*) echo -n "there is no $name: gcloud compute tpus tpu-vm list shows what there is" ;;
        *'return code [255]'* | *'Connection refused'* | *'Connection timed out'* | *'Permission denied (publickey)'*)
            echo -n "ssh does not get in: try again in a minute; see that a firewall rule lets port 22 in, or that the TPU is not under maintenance" ;;
        *) echo -n "it failed" ;;
    esac
    echo ". gcloud said: $(tr '\n' ' ' <<<"${text#ERROR: }" | tr -cd '[:print:]' | cut -c1-300)"
}

preempted_next() {
    echo "Run $(command_line delete), then create, install and run again: the run goes on from what was collected in" \
        "$(quoted "$destination")"
}

# Ends the script because of the errors in the file $1; the rest says what could not be done.
fail_cloud() {
    local errors=$1 status=1
    shift
    if grep -q 'state "\(PREEMPTED\|TERMINATED\)"' "$errors"; then status=3; fi
    fail "$status" "$*: $(meaning "$errors")"
}

# Sets state and workers (unless given) from the cloud. With --dry-run: READY, and one worker unless given.
describe() {
    local found
    if [ "$dry_run" = 1 ]; then
        gcloud_tpus /dev/null tpu-vm describe "$name" '--format=value(state,networkEndpoints.len())'
        state=READY
        [ -n "$workers" ] || echo "# for one worker; --workers N shows the commands for more"
        workers=${workers:-1}
        return
    fi
    found=$(gcloud_tpus "$scratch/describe" tpu-vm describe "$name" '--format=value(state,networkEndpoints.len())') ||
        fail_cloud "$scratch/describe" "cannot look at $name"
    state=${found%%$'\t'*}
    workers=${workers:-${found##*$'\t'}}
    [[ $workers =~ ^[1-9][0-9]*$ ]] || workers=1
}

# The same, and ends the script unless the TPU can be worked with.
describe_ready() {
    describe
    case $state in
        READY) ;;
        PREEMPTED | TERMINATED) fail 3 "$name was preempted, and its disk is gone with it. $(preempted_next)" ;;
        STOPPED) fail 1 "$name is stopped: run gcloud compute tpus tpu-vm start $(quoted "$name" ${place[@]+"${place[@]}"})" ;;
        *) fail 1 "$name is in the state $state and not READY: try again in a minute" ;;
    esac
}

# on_worker INDEX COMMAND…: runs a command on one worker. Its output is printed; gcloud's errors go to a file that
# the number of the worker names.
on_worker() {
    local index=$1
    shift
    gcloud_tpus "$scratch/errors.$index" tpu-vm ssh "$name" "--worker=$index" "--command=$(quoted "$@")"
}

# copy INDEX FROM… TO: copies files to or from one worker; names on the worker begin with "NAME:".
copy() {
    local index=$1
    shift
    gcloud_tpus "$scratch/errors.$index" tpu-vm scp "$@" --recurse "--worker=$index"
}

# on_every_worker FUNCTION: calls FUNCTION INDEX for every worker at the same time. Each worker's output is in
# $scratch/out.INDEX. Returns 1 and says so, in a line for each, if some failed. One ssh for each worker instead of
# --worker=all: it tells whose output is whose, and needs no ssh-agent.
on_every_worker() {
    local index failed=0 jobs=()
    for ((index = 0; index < workers; index++)); do
        if [ "$dry_run" = 1 ]; then
            "$1" "$index"
        else
            "$1" "$index" >"$scratch/out.$index" &
            jobs+=("$!")
        fi
    done
    if [ "$dry_run" = 1 ]; then return; fi
    for ((index = 0; index < workers; index++)); do
        wait "${jobs[index]}" && continue
        echo "tpu/$script: worker $index of $name: $(meaning "$scratch/errors.$index")" >&2
        if grep -q 'state "\(PREEMPTED\|TERMINATED\)"' "$scratch/errors.$index"; then exit 3; fi
        failed=1
    done
    return "$failed"
}

# ask INDEX ARGUMENTS…: runs the script `worker` of the installed project on one worker.
ask() {
    on_worker "$1" bash gptoss-jax/scripts/tpu/worker "${@:2}"
}

# Prints the SHA-256 of standard input.
sha256() {
    if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d' ' -f1
}
