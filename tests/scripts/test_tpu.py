"""scripts/tpu against a cloud of folders: what gcloud is asked, what a failure means, that no row is lost."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from gptoss_jax.cli import new_parser
from tests.scripts.test_environment import FAKE, PROJECT

SCRIPTS = PROJECT / "scripts/tpu"
COMMANDS = ("create", "install", "run", "watch", "collect", "stop", "delete")
TOOLS = """
basename bash cat cksum cp cut date dirname env find flock git grep gzip head ln ls mkdir mktemp mv nohup rm
sed setsid sh sha256sum sleep tail tar tee touch tr wc
"""

# Stands for `gptoss-jax batch`: a row for each line, added to the rows that are there. It waits for the file
# ~/go after as many rows as ~/limit says. Of several processes only the one with the file ~/first writes.
BATCH = """#!{python}
import json, pathlib, sys, time
if sys.argv[1:] == ["--version"]:
    print("gptoss-jax 0.1.0")
    sys.exit()
home = pathlib.Path.home()
with open(home / "arguments", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if (home / "broken").exists():
    sys.exit("gptoss-jax: " + (home / "broken").read_text())
if "--distributed" in sys.argv and not (home / "first").exists():
    sys.exit()
output = home / sys.argv[sys.argv.index("--output") + 1]
output.with_name(output.name + ".run.json").write_text("{{}}")
limit = int((home / "limit").read_text()) if (home / "limit").exists() else 10**9
done = output.read_text().count("\\n") if output.exists() else 0
with output.open("a", buffering=1) as rows:
    for number, line in enumerate((home / sys.argv[2]).read_text().splitlines()):
        if number < done:
            continue
        while number >= limit and not (home / "go").exists():
            time.sleep(0.02)
        rows.write(json.dumps({{"line": number + 1, "text": json.loads(line)["prompt"] + "!"}}) + "\\n")
print("rows", number + 1)
"""


class Cloud:
    """A cloud that may hold the TPU VM my-tpu, and the machine of somebody who uses it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder / "cloud"
        self.here = folder / "here of 'somebody'"
        self.workers = workers
        self.path = folder / "bin"
        for made in (self.folder / "fail", self.here, self.path):
            made.mkdir(parents=True)
        (self.folder / "refuse").touch()
        for tool in TOOLS.split():
            if found := shutil.which(tool):
                (self.path / tool).symlink_to(found)
        gcloud = self.path / "gcloud"
        gcloud.write_text(
            f'#!/bin/sh\nexec {sys.executable} -IS "{PROJECT}/tests/scripts/fake_gcloud.py" "$@"\n'
        )
        gcloud.chmod(0o755)
        self.new_workers()

    def new_workers(self) -> None:
        """Empty disks: what a new VM has, and a preempted one has lost."""
        for index in range(self.workers):
            home = self.worker(index)
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()

    def worker(self, index: int) -> Path:
        return self.folder / f"worker{index}"

    def start(self, state: str = "READY") -> None:
        (self.folder / "vm").write_text(json.dumps({"state": state, "workers": self.workers}))

    def install(self) -> None:
        """What scripts/tpu/install leaves, without a Python."""
        for index in range(self.workers):
            home = self.worker(index) / "gptoss-jax"
            shutil.copytree(SCRIPTS, home / "scripts/tpu")
            (home / ".venv/bin").mkdir(parents=True)
            self.batch(home / ".venv/bin/gptoss-jax")
        (self.worker(self.workers - 1) / "first").touch()  # jax's first process is often another than 0

    @staticmethod
    def batch(file: Path) -> None:
        file.write_text(BATCH.format(python=sys.executable))
        file.chmod(0o755)

    def call(self, script: str, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.path / "bash", SCRIPTS / script, *arguments],
            cwd=self.here,
            env={
                "PATH": str(self.path),
                "HOME": str(self.here),
                "CLOUD": str(self.folder),
                "WORKERS": str(self.workers),
                "TPU_POLL_SECONDS": "0.05",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def refusal(self, script: str, *arguments: str, code: int) -> str:
        """What a script says that fails: one line."""
        done = self.call(script, *arguments, code=code)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.strip()

    def says(self, command: str, text: str) -> None:
        (self.folder / "fail" / command).write_text(text)

    def calls(self) -> list[list[str]]:
        file = self.folder / "calls"
        return [json.loads(line)[2:] for line in file.read_text().splitlines()] if file.exists() else []

    def asked(self) -> list[str]:
        """The commands of gcloud that were called."""
        return [" ".join(call[:2]) for call in self.calls()]

    def rows(self, name: str = "output.jsonl") -> list[int]:
        lines = (self.here / "out/tpu/my-tpu/batch" / name).read_text().splitlines()
        return [json.loads(line)["line"] for line in lines]


def written(worker: Path) -> int:
    """The rows that a worker has written."""
    file = worker / "runs/batch/out/output.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path, getattr(request, "param", 1))
    yield cloud
    for index in range(cloud.workers):
        (cloud.worker(index) / "go").touch()  # nothing is left waiting


@pytest.fixture
def requests(cloud: Cloud) -> str:
    """A file of three requests whose name is none of a host, an option or one word."""
    name = 'it\'s: a "file" $(touch hacked) `x`.jsonl'
    (cloud.here / name).write_text("".join(json.dumps({"prompt": f"{n}"}) + "\n" for n in range(3)))
    return name


two_workers = pytest.mark.parametrize("cloud", [2], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "accelerator", "runtime"),
    [
        ("v5e-1", "v5litepod-1", "v2-alpha-tpuv5-lite"),
        ("v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v6e-1", "v6e-1", "v2-alpha-tpuv6e"),
        ("v6e-4", "v6e-4", "v2-alpha-tpuv6e"),
        ("v5p-8", "v5p-8", "v2-alpha-tpuv5"),
    ],
)
def test_create_asks_for_the_type_by_the_clouds_name(
    cloud: Cloud, given: str, accelerator: str, runtime: str
) -> None:
    done = cloud.call("create", "my-tpu", "--type", given, "--spot", "--zone=z", "--", "--network=my net")
    create = cloud.calls()[0]
    assert create[:3] == ["tpu-vm", "create", "my-tpu"]
    assert set(create[3:]) == {
        f"--accelerator-type={accelerator}",
        f"--version={runtime}",
        "--spot",
        "--network=my net",
        "--zone=z",
        "--quiet",
    }
    assert "scripts/tpu/delete my-tpu --zone=z" in done.stdout


@pytest.mark.slow
def test_create_in_line_waits_until_it_is_granted(cloud: Cloud) -> None:
    done = cloud.call("create", "my-tpu", "--type", "v6e-1", "--queued")
    create = cloud.calls()[0]
    assert create[:3] == ["queued-resources", "create", "my-tpu"]
    assert {"--node-id=my-tpu", "--runtime-version=v2-alpha-tpuv6e"} < set(create)
    assert cloud.asked().count("queued-resources describe") == 3
    assert "my-tpu: WAITING_FOR_RESOURCES." in done.stdout
    assert "It is billed until" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "means"),
    [
        (
            "Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0.",
            "there is no quota for it",
        ),
        (
            '{\n  "code": 8,\n  "message": "There is no more capacity in the zone \\"us-east5-b\\"; you can '
            'try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu)"\n}',
            "the zone has none free now",
        ),
        ("Insufficient reserved capacity. Contact customer support.", "the zone has none free now"),
        ("The required property [compute/zone] is not currently set.", "give --zone"),
        ("You do not currently have an active account selected.", "gcloud auth login"),
        ("PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before", "gcloud services enable"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", "TPU Admin"),
    ],
)
def test_create_that_fails_says_why_and_that_nothing_is_billed(cloud: Cloud, said: str, means: str) -> None:
    cloud.says("tpu-vm create", said)
    done = cloud.call("create", "my-tpu", "--type", "v6e-1", code=1)
    billed, why = done.stderr.splitlines()
    assert billed == "tpu/create: nothing was created, so nothing is billed."
    assert why.startswith("tpu/create: cannot create my-tpu: ")
    assert means in why
    assert said.split("\n")[0][:40] in why


@pytest.mark.slow
def test_create_that_fails_halfway_says_that_something_may_be_billed(cloud: Cloud) -> None:
    cloud.start("CREATING")
    cloud.says("tpu-vm create", "Internal error.")
    left, _ = cloud.call("create", "my-tpu", "--type", "v6e-1", code=1).stderr.splitlines()
    assert left == (
        "tpu/create: my-tpu is there (state CREATING) and may be billed: run scripts/tpu/delete my-tpu"
    )


@pytest.mark.slow
def test_a_place_in_line_is_billed_sooner_or_later_and_told(cloud: Cloud) -> None:
    cloud.says("queued-resources describe", "Internal error.")
    done = cloud.call("create", "my-tpu", "--type", "v6e-1", "--queued", code=1)
    assert "there may be something that is billed: run scripts/tpu/delete my-tpu" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "my-tpu"], "--type is missing"),
        (["create", "my-tpu", "--type", "7x"], "7x is offered through GKE only"),
        (["create", "my-tpu", "--type", "v6e-4; ls"], "--type 'v6e-4; ls': it must be"),
        (["create", "My TPU", "--type", "v6e-4"], "'My TPU' is no name of a TPU"),
        (["create", "my-tpu", "--type"], "--type needs a value"),
        (["create", "my-tpu", "--typ", "v6e-4"], "there is no option --typ"),
        (["create"], "the name of the TPU is missing"),
        (["install", "my-tpu", "--checkpoint", "/data"], "--checkpoint /data: it must be gs://"),
        (["run", "my-tpu"], "there must be one file of requests, not 0"),
        (["run", "my-tpu", "no such.jsonl"], "'no such.jsonl': no such file"),
        (["run", "my-tpu", __file__, "--", "--output=x"], "the option --output cannot be given"),
        (["watch", "my-tpu", "--collect-every", "soon"], "--collect-every soon: it must be a number"),
        (["collect", "my-tpu", "--run", "../x"], "--run ../x: it must be"),
        (["delete", "my-tpu", "--workers", "0"], "--workers 0: it must be"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_asked(
    cloud: Cloud, arguments: list[str], says: str
) -> None:
    assert says in cloud.refusal(*arguments, code=2)
    assert cloud.calls() == []


@pytest.mark.slow
@pytest.mark.parametrize("script", COMMANDS)
def test_help_is_one_screen_and_needs_no_gcloud(cloud: Cloud, script: str) -> None:
    (cloud.path / "gcloud").unlink()
    done = cloud.call(script, "--help")
    assert done.stdout.startswith(f"Usage: scripts/tpu/{script} NAME")
    assert "--dry-run" in done.stdout
    assert len(done.stdout.splitlines()) <= 30


def test_quoted_words_are_read_back_by_shells_as_they_were() -> None:
    draw = random.Random(7)
    letters = "ab'\"\\ $`;&|<>()*?[]#~=-%\n\té!{}^"
    words = ["".join(draw.choices(letters, k=draw.randrange(9))) for _ in range(300)]
    words += [f"--zone={word}" for word in words[:100]]
    script = f'source "{SCRIPTS}/common.sh"; quoted "$@"'
    line = subprocess.run(
        ["bash", "-c", script, "x", *words], capture_output=True, text=True, check=True
    ).stdout
    assert shlex.split(line) == words
    told = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    assert told.stdout.split("\0")[:-1] == words


def dry_runs(cloud: Cloud, requests: str, place: Sequence[str]) -> dict[str, list[str]]:
    """The commands that each script prints, for hostile names."""
    own = {
        "create": ["--type", "v6e-4", "--spot", "--", "--network=a b"],
        "install": ["--checkpoint", "gs://b/it's mine"],
        "run": [requests, "--workers", "2", "--", "--checkpoint", "my 'checkpoint'", "--effort", "high"],
    }
    found = {}
    for script in COMMANDS:
        lines = cloud.call(script, "my-tpu", *place, "--dry-run", *own.get(script, [])).stdout.splitlines()
        found[script] = [line for line in lines if line.startswith("gcloud ")]
        others = [line for line in lines if not line.startswith("gcloud ")]
        assert all(line.startswith(("#", "git ", "cp ")) for line in others), others
    return found


def test_a_dry_run_prints_commands_and_runs_none(cloud: Cloud, requests: str) -> None:
    place = ["--zone", "my zone", "--project", "it's"]
    printed = dry_runs(cloud, requests, place)
    (cloud.path / "gcloud").unlink()
    assert dry_runs(cloud, requests, place) == printed
    words = shlex.split(printed["run"][-1])
    assert "--zone=my zone" in words
    assert "--project=it's" in words
    assert cloud.calls() == []
    assert sorted(os.listdir(cloud.here)) == [requests]


@pytest.mark.slow
def test_what_a_dry_run_prints_is_what_is_called(cloud: Cloud) -> None:
    cloud.start()
    cloud.install()
    for script in ("stop", "delete"):
        printed = cloud.call(script, "my-tpu", "--zone=my zone", "--dry-run").stdout.splitlines()
        before = len(cloud.calls())
        cloud.call(script, "my-tpu", "--zone=my zone")
        called = cloud.calls()[before:]
        commands = [shlex.split(line)[3:] for line in printed if line.startswith("gcloud ")]
        assert all(call in commands or "--format=value(state)" in call for call in called)
        assert len(called) > 1


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("gcloud"), reason="needs gcloud, whose own check of commands is the oracle"
)
def test_gcloud_knows_every_command_and_flag(cloud: Cloud, requests: str, tmp_path: Path) -> None:
    place = ["--zone=us-east5-b", "--project=my-project"]
    commands = [line for lines in dry_runs(cloud, requests, place).values() for line in lines]
    queued = cloud.call("create", "my-tpu", "--type=v5e-1", "--queued", "--spot", *place, "--dry-run").stdout
    commands += queued.splitlines()
    page = (PROJECT / "docs/tpu.md").read_text().replace("\\\n", " ")
    commands += [line.strip() for line in page.splitlines() if line.strip().startswith("gcloud ")]
    assert len(commands) > 20
    file = tmp_path / "commands.json"
    file.write_text(
        json.dumps([{"command_string": one} for one in [*commands, "gcloud compute tpus tpu-vm ssh --x"]])
    )
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"],
        env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"this gcloud does not check commands: {done.stderr.strip()[-200:]}")
    *checked, wrong = json.loads(done.stdout)
    assert not wrong["success"]
    assert [(one["command_string"], one["error_message"]) for one in checked if not one["success"]] == []


@two_workers
def test_a_batch_from_an_empty_vm_to_its_rows(cloud: Cloud, requests: str) -> None:
    """One model over two workers, and names that quoting must survive."""
    cloud.call("create", "my-tpu", "--type", "v5e-16")
    cloud.install()
    hostile = ["--effort", 'it\'s $(touch hacked) "x"\n  y']
    done = cloud.call("run", "my-tpu", requests, "--", *hostile)
    assert done.stdout.splitlines() == [
        "worker 0: started",
        "worker 1: started",
        "Next: scripts/tpu/watch my-tpu",
    ]
    done = cloud.call("watch", "my-tpu")
    assert done.stdout.endswith(
        "3 rows are in out/tpu/my-tpu/batch/output.jsonl\n"
        "The run batch has ended. my-tpu is billed until scripts/tpu/delete my-tpu\n"
    )
    assert cloud.rows() == [1, 2, 3]
    for index in range(2):
        (arguments,) = (cloud.worker(index) / "arguments").read_text().splitlines()
        assert json.loads(arguments) == [
            *("batch", "runs/batch/input.jsonl", "--output", "runs/batch/out/output.jsonl"),
            *("--report", "runs/batch/out/report.json", "--distributed", "auto"),
            *hostile,
        ]
    assert not list(cloud.folder.parent.rglob("hacked"))
    assert (cloud.call("delete", "my-tpu").stdout) == "my-tpu is deleted: nothing of it is billed any more.\n"
    assert not (cloud.folder / "vm").exists()


def test_the_options_of_a_run_are_those_of_the_batch_command(cloud: Cloud, requests: str) -> None:
    printed = cloud.call("run", "my-tpu", requests, "--dry-run", "--workers", "2").stdout
    (start,) = (line for line in printed.splitlines() if "--worker=1" in line and " start " in line)
    (remote,) = (flag for flag in shlex.split(start) if flag.startswith("--command="))
    words = shlex.split(remote.removeprefix("--command="))
    options = new_parser().parse_args(words[words.index("batch", 5) :])
    assert (options.input, options.output) == ("runs/batch/input.jsonl", "runs/batch/out/output.jsonl")
    assert options.distributed == {}


@pytest.mark.slow
@two_workers
def test_a_preempted_run_goes_on_with_the_same_command_from_what_was_collected(
    cloud: Cloud, requests: str
) -> None:
    cloud.start()
    cloud.install()
    writer = cloud.worker(1)
    (writer / "limit").write_text("2")
    cloud.call("run", "my-tpu", requests)
    until(lambda: written(writer) == 2)
    cloud.call("collect", "my-tpu")
    assert cloud.rows() == [1, 2]
    (writer / "go").touch()

    cloud.start("PREEMPTED")
    for script, *arguments in (["watch"], ["collect"], ["run", requests], ["stop"], ["install"]):
        assert "my-tpu was preempted, and its disk is gone" in cloud.refusal(
            script, "my-tpu", *arguments, code=3
        )
    assert "deleted" in cloud.call("delete", "my-tpu").stdout

    cloud.new_workers()
    cloud.call("create", "my-tpu", "--type", "v5e-16")
    cloud.install()
    done = cloud.call("run", "my-tpu", requests)
    assert "Going on with 2 rows of out/tpu/my-tpu/batch" in done.stdout
    cloud.call("watch", "my-tpu")
    assert cloud.rows() == [1, 2, 3]


@pytest.mark.slow
def test_a_vm_that_is_preempted_while_it_is_watched_is_told(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    (cloud.worker(0) / "limit").write_text("1")
    cloud.call("run", "my-tpu", requests)
    cloud.says("tpu-vm ssh", 'This TPU has terminal state "PREEMPTED", so it cannot be used anymore.')
    assert "create, install and run again: the run goes on" in cloud.refusal("watch", "my-tpu", code=3)


@pytest.mark.slow
@two_workers
def test_ssh_that_is_refused_on_one_worker_is_told_for_that_worker(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    (cloud.folder / "refuse").write_text("1")
    for script, *arguments in (["run", requests], ["collect"], ["stop"], ["delete"]):
        said = cloud.call(script, "my-tpu", *arguments, code=1).stderr.splitlines()
        assert len(said) == 2, said
        worker, end = said
        assert worker.startswith(
            f"tpu/{script}: worker 1 of my-tpu: ssh does not get in: try again in a minute"
        )
        assert "worker 0" not in worker + end
    assert (cloud.folder / "vm").exists()
    done = cloud.call("watch", "my-tpu", code=4)
    assert "my-tpu is billed until scripts/tpu/delete my-tpu" in done.stderr.splitlines()[-1]
    assert not (cloud.worker(0) / "arguments").exists()


def test_a_vm_with_rows_that_were_not_collected_is_not_deleted(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    (cloud.worker(0) / "limit").write_text("2")
    cloud.call("run", "my-tpu", requests)
    assert "the run batch is at work (worker 0)" in cloud.refusal("delete", "my-tpu", code=1)
    (cloud.worker(0) / "go").touch()
    until(lambda: (cloud.worker(0) / "runs/batch/exit").exists())
    said = cloud.refusal("delete", "my-tpu", code=1)
    assert (
        "the run batch has rows that were not collected (worker 0): scripts/tpu/collect my-tpu first" in said
    )
    assert "my-tpu is still there and billed" in said
    assert "tpu-vm delete" not in cloud.asked()
    cloud.call("collect", "my-tpu")
    cloud.call("delete", "my-tpu")
    assert not (cloud.folder / "vm").exists()


@pytest.mark.slow
def test_what_is_deleted_by_force_or_was_never_there(cloud: Cloud, requests: str) -> None:
    assert "nothing of that name is billed" in cloud.refusal("delete", "my-tpu", code=1)
    cloud.start("STOPPED")
    assert "is STOPPED, so nobody can see" in cloud.refusal("delete", "my-tpu", code=1)
    cloud.says("tpu-vm delete", "Internal error.")
    assert "was not deleted and may be billed" in cloud.refusal("delete", "my-tpu", "--force", code=1)
    (cloud.folder / "fail/tpu-vm delete").unlink()
    cloud.call("delete", "my-tpu", "--force")
    assert not (cloud.folder / "vm").exists()


@pytest.mark.slow
def test_a_place_in_line_is_deleted_with_its_vm(cloud: Cloud) -> None:
    cloud.call("create", "my-tpu", "--type", "v6e-1", "--queued")
    assert cloud.call("delete", "my-tpu").stdout.startswith("my-tpu is deleted")
    assert "queued-resources delete" in cloud.asked()
    assert not (cloud.folder / "line").exists()


@pytest.mark.slow
def test_run_leaves_a_run_alone_that_is_at_work_and_stop_ends_it(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    (cloud.worker(0) / "limit").write_text("2")
    cloud.call("run", "my-tpu", requests)
    assert "worker 0: is at work already" in cloud.call("run", "my-tpu", requests).stdout
    said = cloud.call("run", "my-tpu", requests, "--", "--effort", "low", code=1).stderr
    assert "the run batch is at work with another command" in said
    until(lambda: written(cloud.worker(0)) == 2)
    cloud.call("stop", "my-tpu")
    assert "is not at work" in cloud.call("stop", "my-tpu").stdout
    assert "ended with code 143" in cloud.call("watch", "my-tpu", code=1).stderr
    assert cloud.rows() == [1, 2]
    (cloud.worker(0) / "go").touch()
    cloud.call("run", "my-tpu", requests)
    cloud.call("watch", "my-tpu")
    assert cloud.rows() == [1, 2, 3]


@pytest.mark.slow
def test_a_run_that_fails_is_told_with_the_end_of_its_log(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    (cloud.worker(0) / "broken").write_text("no such checkpoint: \x1b[31m/data")
    cloud.call("run", "my-tpu", requests)
    said = cloud.call("watch", "my-tpu", code=1).stderr
    assert (
        "worker 0: the batch ended with code 1; its log ends: gptoss-jax: no such checkpoint: [31m/data."
        in said
    )


@pytest.mark.slow
def test_collected_rows_are_never_replaced_by_others(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    cloud.call("run", "my-tpu", requests)
    cloud.call("watch", "my-tpu")
    output = cloud.worker(0) / "runs/batch/out/output.jsonl"

    whole = output.read_text()
    output.write_text("".join(whole.splitlines(True)[:1]))  # a VM that knows less
    assert "has all rows of the TPU and more" in cloud.call("collect", "my-tpu").stderr
    assert cloud.rows() == [1, 2, 3]

    output.write_text('{"line": 7}\n{"line": 8')  # another run, and a line that is being written
    assert "is kept as out/tpu/my-tpu/batch/output.jsonl.1" in cloud.call("collect", "my-tpu").stderr
    assert cloud.rows() == [7]
    assert cloud.rows("output.jsonl.1") == [1, 2, 3]


@pytest.mark.slow
@two_workers
def test_rows_of_a_worker_that_wrote_before_are_collected_too(cloud: Cloud, requests: str) -> None:
    cloud.start()
    cloud.install()
    cloud.call("run", "my-tpu", requests)
    until(lambda: (cloud.worker(1) / "runs/batch/exit").exists())
    out = cloud.worker(0) / "runs/batch/out"
    (out / "output.jsonl").write_text('{"line": 9}\n')
    assert "worker 0 has rows of its own" in cloud.call("collect", "my-tpu").stderr
    assert cloud.rows() == [1, 2, 3]
    assert cloud.rows("worker-0.output.jsonl") == [9]
    cloud.call("delete", "my-tpu")


# A Python for environment.sh, whose pip "installs" the command.
INSTALLS = FAKE.replace(
    'echo "$*" >>"$PIP_CALLS"', 'echo "$*" >>"$HOME/pip"; cp "$HOME/batch" "${{0%/*}}/gptoss-jax"'
)


@pytest.mark.slow
@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="needs a git checkout")
@two_workers
def test_install_unpacks_the_last_commit_on_every_worker(cloud: Cloud, requests: str) -> None:
    cloud.start()
    for index in range(2):
        home = cloud.worker(index)
        (home / "bin").mkdir()
        (home / "bin/python3.12").write_text(INSTALLS.format(version="3.12", status=0))
        (home / "bin/python3.12").chmod(0o755)
        (home / "gptoss-jax").mkdir()
        (home / "gptoss-jax/removed since").touch()
        cloud.batch(home / "batch")
    done = cloud.call("install", "my-tpu")
    assert done.stdout.endswith("gptoss-jax 0.1.0\nNext: scripts/tpu/run my-tpu requests.jsonl\n")
    for index in range(2):
        project = cloud.worker(index) / "gptoss-jax"
        assert (project / "gptoss_jax/cli.py").exists()
        assert not (project / "removed since").exists()
        assert "python3.12.txt --editable" in (cloud.worker(index) / "pip").read_text()
        assert "[tpu]" in (cloud.worker(index) / "pip").read_text()
    cloud.call("run", "my-tpu", requests)


@pytest.mark.slow
@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="needs a git checkout")
def test_a_worker_on_which_installing_fails_says_why(cloud: Cloud) -> None:
    cloud.start()
    said = cloud.call("install", "my-tpu", code=1).stderr.splitlines()
    assert said[0].endswith(
        "there is no Python of 3.14, 3.13, 3.12, 3.11 with venv, and uv did not bring one"
    )
    assert said[1].endswith("run the same command again. my-tpu is billed until scripts/tpu/delete my-tpu")


def test_the_kubernetes_files_say_what_the_page_says() -> None:
    """The numbers that belong together are equal, and each type of TPU is one of the page's table."""
    page = (PROJECT / "docs/tpu.md").read_text()
    table = [
        re.findall(r"[^|`\s]+", line) for line in page.splitlines() if "ct5" in line or "-standard-" in line
    ]
    sold = {(row[1], row[2], int(row[3]), int(row[4])) for row in table if len(row) == 6}
    assert len(sold) == 6
    for name in ("gke-shards", "gke-slice", "ray-cluster"):
        file = yaml.safe_load((SCRIPTS / f"{name}.yaml").read_text())
        if name == "ray-cluster":
            (group,) = file["spec"]["workerGroupSpecs"]
            hosts = group["numOfHosts"]
        else:
            (group,) = (job["template"]["spec"] for job in file["spec"]["replicatedJobs"])
            assert group["completions"] == group["parallelism"]
            hosts = 1 if name == "gke-shards" else group["completions"]
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert (
            pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"],
            pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"],
            container["resources"]["limits"]["google.com/tpu"],
            hosts,
        ) in sold
        if name != "ray-cluster":
            options = new_parser().parse_args([*container["command"][1:], *container["args"]])
            assert options.distributed == ({} if hosts > 1 else None)
        if name == "gke-shards":
            assert f"--shard=auto/{group['completions']}" in container["args"]


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sys.executable).parent / "shellcheck").exists() and not shutil.which("shellcheck"),
    reason="needs shellcheck",
)
def test_shellcheck_finds_nothing() -> None:
    own = Path(sys.executable).parent / "shellcheck"
    shell = [
        file
        for file in [*SCRIPTS.iterdir(), *(PROJECT / "scripts").iterdir(), PROJECT / ".ci/run"]
        if file.is_file() and (file.suffix == ".sh" or file.read_text().startswith("#!/usr/bin/env bash"))
    ]
    assert len(shell) > 12
    done = subprocess.run(
        [str(own) if own.exists() else "shellcheck", *shell], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
