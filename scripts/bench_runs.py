"""Starts the processes of each strategy, all pinned alike, and reads what they wrote."""
import ctypes
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import bench_cli

# Windows of one rank in one forward, as train_gpt has them.
MICRO_BATCH = {"tiny": 8, "small": 4, "base": 1, "gpt2-124m": 1}
DEFAULT_FLAGS = ["--sample", "0", "--eval-windows", "64"]
GRACE_S = 10
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Process:
    command: list
    cores: list | None  # None: the launcher pins.
    json: pathlib.Path
    log: pathlib.Path


@dataclasses.dataclass
class PlannedRun:
    strategy: str
    ranks: int
    threads: int
    processes: list


@dataclasses.dataclass
class FinishedRun:
    planned: PlannedRun
    exit_code: int
    events: list  # Per process: the objects of its JSON lines.
    reason: str | None  # One line, where it failed.


def divide_batch(options):
    """Windows of a rank's forward, and of one step over all ranks."""
    micro = bench_cli.value_of(options.training_flags, "--micro-batch")
    micro = micro or MICRO_BATCH[options.model]
    total = bench_cli.value_of(options.training_flags, "--global-batch") or micro * options.ranks
    if total % (micro * options.ranks) != 0:
        raise bench_cli.UsageError(
            f"--global-batch {total} does not divide into {options.ranks} ranks with "
            f"micro-batches of {micro}; it must be a multiple of {micro * options.ranks}")
    return micro, total


def plan_runs(options, programs, data, folder, core_count):
    """What to start for each strategy. Rank r runs on core r modulo the cores, with one thread;
    single has the cores of all ranks and one thread for each."""
    cores = sorted(os.sched_getaffinity(0))
    micro, total = divide_batch(options)
    ranks = options.ranks
    job_cores = min(ranks, core_count)

    def training(strategy, micro_batch, global_batch, threads, json_path):
        return [str(programs.train_gpt), "--strategy", strategy, "--model", options.model,
                "--steps", str(options.steps), *(f"--data={path}" for path in data),
                *DEFAULT_FLAGS, *options.training_flags, "--micro-batch", str(micro_batch),
                "--global-batch", str(global_batch), "--threads", str(threads),
                "--json", str(json_path)]

    def plan(strategy):
        paths = folder / f"{strategy}.jsonl", folder / f"{strategy}.log"
        if strategy == "single":
            command = training("single", micro * ranks, total, job_cores, paths[0])
            return PlannedRun(strategy, 1, job_cores,
                              [Process(command, cores[:job_cores], *paths)])
        if strategy == "alone":
            processes = []
            for rank in range(ranks):
                mark = f".{rank}" if rank else ""
                json_path = folder / f"alone{mark}.jsonl"
                command = training("single", micro, total // ranks, 1, json_path)
                processes.append(Process(command, [cores[rank % len(cores)]], json_path,
                                         folder / f"alone{mark}.log"))
            return PlannedRun(strategy, ranks, 1, processes)
        launch = [str(programs.convoyrun), "-n", str(ranks), "--bind-to", "core", "--"]
        command = launch + training(strategy, micro, total, 1, paths[0])
        return PlannedRun(strategy, ranks, 1, [Process(command, None, *paths)])

    return [plan(strategy) for strategy in options.strategies]


def start(process):
    process.json.unlink(missing_ok=True)
    log = open(process.log, "wb")
    log.write((" ".join(process.command) + "\n").encode())
    log.flush()

    def prepare():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # Nothing runs on when the bench is killed.
        if process.cores is not None:
            os.sched_setaffinity(0, process.cores)

    with log:
        return subprocess.Popen(process.command, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True,
                                preexec_fn=prepare)


def stop(children):
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for child in children:
        try:
            child.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def read_events(path):
    """The whole lines that are there by now."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def steps_of(events):
    return [event for event in events if event["event"] == "step"]


class Progress:
    """Shows the step a run is at, where somebody can watch."""

    def __init__(self, planned, total_steps):
        self.planned, self.total_steps = planned, total_steps
        self.is_shown = sys.stderr.isatty()

    def show(self):
        if not self.is_shown:
            return
        steps = steps_of(read_events(self.planned.processes[0].json))
        text = f"bench: {self.planned.strategy:<6} step {len(steps)}/{self.total_steps}"
        if steps:
            text += f"  loss {steps[-1]['loss']:.4f}  {steps[-1]['step_s']:.3f} s"
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def clear(self):
        if self.is_shown:
            sys.stderr.write("\r\x1b[K")


def wait_for(children, progress):
    """Until all have ended; when one fails, the others are stopped."""
    while any(child.poll() is None for child in children):
        if any(child.poll() not in (None, 0) for child in children):
            stop(children)
            break
        progress.show()
        time.sleep(0.2)
    progress.clear()


def last_error(log):
    """The line of a log that says best why a run failed."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    for mark in ("error:", "first failure:"):
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[-1].strip() if lines else "no output"


def exit_code_of(children):
    codes = [child.returncode for child in children if child.returncode != 0]
    code = codes[0] if codes else 0
    return 128 - code if code < 0 else code


def execute(planned, options, say):
    if not sys.stderr.isatty():
        say(f"{planned.strategy}: {options.steps} steps")
    children = []
    progress = Progress(planned, options.steps)
    began = time.monotonic()
    try:
        for process in planned.processes:
            children.append(start(process))
        wait_for(children, progress)
    finally:
        stop(children)
    code = exit_code_of(children)
    reason = None
    if code != 0:
        failed = next(process for process, child in zip(planned.processes, children)
                      if child.returncode != 0)
        reason = last_error(failed.log)
        say(f"{planned.strategy} failed with exit code {code}: {reason} (all of it: {failed.log})")
    else:
        say(f"{planned.strategy} took {time.monotonic() - began:.0f} s")
    return FinishedRun(planned, code, [read_events(p.json) for p in planned.processes], reason)
