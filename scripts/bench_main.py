#!/usr/bin/env python3
"""Trains the same GPT on the same text as one process, under DDP and under FSDP, and compares them.

    scripts/bench                                  # about three minutes, model small, two ranks
    scripts/bench --ranks 4 --model base --steps 20 --strategies alone,ddp,fsdp
    scripts/bench --data notes/ -- --seq 128 --micro-batch 8

Sets up and builds first where that is needed. Exit code: 0 all ran and agree, 1 a run failed,
2 usage, 3 the losses disagree.
"""
import datetime
import json
import os
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True  # Nothing of ours appears in a clean checkout.

import bench_children
import bench_cli
import bench_ground
import bench_report
import bench_runs
import bench_summary
import bench_table


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def make_folder(out):
    """The folder of this run. `latest` beside the default ones leads to the newest."""
    if out is not None:
        folder = pathlib.Path(out)
    else:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        folder = bench_ground.ROOT / "build" / "bench" / stamp
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bench_cli.UsageError(f"cannot make --out {folder}: {error.strerror}") from error
    return folder.resolve()


def point_latest_at(folder):
    link = bench_ground.ROOT / "build" / "bench" / "latest"
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".latest.{os.getpid()}")
    fresh.symlink_to(os.path.relpath(folder, link.parent))
    os.replace(fresh, link)


def write_whole(path, text):
    """A reader sees the whole file or none."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text)
    os.replace(partial, path)


def tell(run, options):
    """One line on a run that has ended."""
    name = run.planned.strategy
    if run.exit_code != 0:
        say(f"{name} failed with exit code {run.exit_code}: {run.reason} (all of it: {run.log})")
        return
    described = bench_summary.describe(run, options.warmup)
    say(f"{name} took {run.seconds:.0f} s: {bench_table.outcome(described)}")


def run_all(plan, options):
    """Runs one strategy after the other. From the second on the speed so far is shown, so that
    nobody has to wait for the last to see the first."""
    runs = []
    for planned in plan:
        if not sys.stderr.isatty():
            say(f"{planned.strategy}: {options.steps} steps")
        run = bench_runs.execute(planned, options)
        runs.append(run)
        if run.exit_code == 2 and all(run.exit_code != 0 for run in runs):
            raise bench_cli.UsageError(run.reason)  # Wrong input: the others would say the same.
        tell(run, options)
        if 1 < len(runs) < len(plan):
            say(f"so far, {len(runs)} of {len(plan)} strategies:")
            sys.stderr.write(bench_table.so_far(bench_summary.describe_all(options, runs)))
            sys.stderr.flush()
    return runs


def put_table(table, folder):
    """False if standard output takes nothing more."""
    try:
        print(f"{table}summary: {folder / 'summary.json'}", flush=True)
        return True
    except OSError as error:
        say(f"cannot write the table to standard output ({error.strerror}); it is in "
            f"{folder / 'table.txt'}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more.
        return False


def bench(options):
    bench_runs.divide_batch(options)  # Wrong numbers are told before anything is built.
    machine = bench_ground.describe_machine()
    programs = bench_ground.find_programs(options, say)
    data = bench_ground.find_data(options, say)
    folder = make_folder(options.out)
    plan = bench_runs.plan_runs(options, programs, data.paths, folder, machine["cores"])
    began = time.time()
    runs = run_all(plan, options)
    summary = bench_summary.summarise(options, machine, data, runs, began)
    write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    table = bench_table.render(summary, data.note)
    write_whole(folder / "table.txt", table)
    write_whole(folder / "report.html", bench_report.render(summary, folder))
    say(f"report: {folder / 'report.html'}")
    if options.out is None:  # Somebody else's folder may go at any time.
        point_latest_at(folder)
    is_shown = put_table(table, folder)
    if not is_shown or any(run["exit_code"] != 0 for run in summary["runs"]):
        return 1
    return 0 if summary["agreement"]["ok"] else 3


def main():
    bench_children.end_on_signals()
    try:
        return bench(bench_cli.parse(sys.argv[1:]))
    except bench_cli.UsageError as error:
        say(error)
        return 2
    except bench_ground.GroundError as error:
        say(error)
        return 1
    except OSError as error:
        say(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
        return 1
    except bench_children.Stopped as stopped:
        number = stopped.args[0]
        say(f"stopped by {signal.Signals(number).name}")
        return 128 + number


if __name__ == "__main__":
    sys.exit(main())
