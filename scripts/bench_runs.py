"""Starts the processes of each strategy, all pinned alike, and reads what they wrote."""
import dataclasses
import json
import os
import pathlib
import resource
import sys
import time

import bench_children
import bench_cli

# Windows of one rank in one forward, as train_gpt has them.
MICRO_BATCH = {"tiny": 8, "small": 4, "base": 1, "gpt2-124m": 1}
DEFAULT_FLAGS = ["--sample", "0", "--eval-windows", "64"]


@dataclasses.dataclass
class Process:
    command: list
    cores: list | None  # None: the launcher pins.
    json: pathlib.Path
    log: pathlib.Path
    trace: pathlib.Path


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
    log: pathlib.Path  # Of the process that failed, or of the first.
    seconds: float
    other_load: float | None  # Cores that programs not of this bench kept busy meanwhile.


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

    def paths(name):
        return tuple(folder / f"{name}.{end}" for end in ("jsonl", "log", "trace.json"))

    def training(strategy, micro_batch, global_batch, threads, written):
        return [str(programs.train_gpt), "--strategy", strategy, "--model", options.model,
                "--steps", str(options.steps), *(f"--data={path}" for path in data),
                *DEFAULT_FLAGS, *options.training_flags, "--micro-batch", str(micro_batch),
                "--global-batch", str(global_batch), "--threads", str(threads),
                "--json", str(written[0]), "--trace", str(written[2])]

    def plan(strategy):
        written = paths(strategy)
        if strategy == "single":
            command = training("single", micro * ranks, total, job_cores, written)
            return PlannedRun(strategy, 1, job_cores,
                              [Process(command, cores[:job_cores], *written)])
        if strategy == "alone":
            processes = []
            for rank in range(ranks):
                written = paths(f"alone.{rank}" if rank else "alone")
                command = training("single", micro, total // ranks, 1, written)
                processes.append(Process(command, [cores[rank % len(cores)]], *written))
            return PlannedRun(strategy, ranks, 1, processes)
        launch = [str(programs.convoyrun), "-n", str(ranks), "--bind-to", "core", "--"]
        command = launch + training(strategy, micro, total, 1, written)
        return PlannedRun(strategy, ranks, 1, [Process(command, None, *written)])

    return [plan(strategy) for strategy in options.order]


def start(process):
    process.json.unlink(missing_ok=True)
    process.trace.unlink(missing_ok=True)
    with open(process.log, "wb") as log:
        log.write((" ".join(process.command) + "\n").encode())
        log.flush()
        return bench_children.start(process.command, log, process.cores)


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
        self.read_bytes, self.last = 0, None

    def show(self):
        if not self.is_shown:
            return
        self.read_on()
        text = f"bench: {self.planned.strategy:<6} step {self.last['step'] if self.last else 0}"
        text += f"/{self.total_steps}"
        if self.last:
            loss = self.last["loss"]
            text += f"  loss {'-' if loss is None else format(loss, '.4f')}"
            text += f"  {self.last['step_s']:.3f} s"
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def read_on(self):
        """Reads only what is new, so that a long run is not disturbed by being watched."""
        try:
            with open(self.planned.processes[0].json, "rb") as file:
                file.seek(self.read_bytes)
                fresh = file.read()
        except FileNotFoundError:
            return
        whole = fresh[:fresh.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        steps = steps_of([json.loads(line) for line in whole.splitlines()])
        self.last = steps[-1] if steps else self.last

    def clear(self):
        if self.is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def busy_seconds():
    """How long the cores have worked since the machine was started, summed; None if unknown."""
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            ticks = [int(text) for text in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """How long this bench and what it has waited for have worked."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def last_error(log):
    """The line of a log that says best why a run failed."""
    lines = log.read_text(errors="replace").splitlines()[1:]  # The first is the command.
    lines = [line for line in lines if line.strip()]
    for mark in ("error:", "first failure:"):
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[-1].strip() if lines else "no output"


def exit_code(child):
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def execute(planned, options):
    """Runs the processes of one strategy to their end; when one fails, the others are stopped."""
    children = []
    progress = Progress(planned, options.steps)
    began, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    failed = None
    try:
        for process in planned.processes:
            children.append(start(process))
        failed = bench_children.wait_for(children, progress.show)
    finally:
        progress.clear()
        bench_children.stop(children)
    seconds = time.monotonic() - began
    other_load = None
    if busy is not None:
        other_load = max(0.0, busy_seconds() - busy - (own_seconds() - own)) / seconds
    log = planned.processes[failed or 0].log
    return FinishedRun(
        planned=planned, exit_code=0 if failed is None else exit_code(children[failed]),
        events=[read_events(process.json) for process in planned.processes],
        reason=None if failed is None else last_error(log), log=log, seconds=seconds,
        other_load=other_load)
