"""The table of a race: medians over rounds, their spread, ratios, memory and losses."""
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))

from bench_ground import cpu_name  # noqa: E402  (needs the path)
from bench_table import MIB, grid  # noqa: E402

PAIRS = [  # What is divided by what.
    ("Convoy single", "PyTorch single"),
    ("Convoy DDP", "PyTorch DDP"),
    ("Convoy FSDP", "PyTorch FSDP2"),
    ("Convoy FSDP, private gather", "PyTorch FSDP2"),
    ("Convoy DDP", "Convoy alone"),
    ("Convoy FSDP", "Convoy alone"),
    ("Convoy DDP", "Convoy alone, slowest"),
    ("Convoy FSDP", "Convoy alone, slowest"),
    ("Convoy single", "Convoy single, system malloc"),
    ("Convoy alone", "Convoy alone, system malloc"),
    ("Convoy DDP", "Convoy DDP, system malloc"),
    ("Convoy FSDP", "Convoy FSDP, system malloc"),
    ("Convoy DDP", "JAX dp"),
    ("Convoy FSDP", "JAX fsdp"),
]
LOSS_PAIRS = PAIRS[:4]


def medians(runs, warmup):
    """One number a round: the median of its timed steps."""
    return [statistics.median(run["step_s"][warmup:]) for run in runs]


def rows_of(results, warmup):
    for name, runs in results.items():
        times = medians(runs, warmup)
        pss = [sum(run["pss"]) / MIB for run in runs if run.get("pss") and all(run["pss"])]
        tracked = [max(run["tracked"]) / MIB for run in runs if run.get("tracked")]
        yield (name, f"{statistics.median(times):.4f}", f"{min(times):.4f}-{max(times):.4f}",
               f"{statistics.median(pss):.0f}" if pss else "-",
               f"{statistics.median(tracked):.0f}" if tracked else "-")


def ratio_rows(results, warmup):
    for mine, theirs in PAIRS:
        if mine not in results or theirs not in results:
            continue
        a, b = medians(results[mine], warmup), medians(results[theirs], warmup)
        rounds = [x / y for x, y in zip(a, b)]
        yield (f"{mine} / {theirs}", f"{statistics.median(a) / statistics.median(b):.3f}",
               f"{min(rounds):.3f}-{max(rounds):.3f}", f"{min(a) / min(b):.3f}",
               memory_ratio(results[mine], results[theirs]))


def memory_ratio(mine, theirs):
    sums = [[sum(run["pss"]) for run in runs if run.get("pss")] for runs in (mine, theirs)]
    if not all(sums):
        return "-"
    return f"{statistics.median(sums[0]) / statistics.median(sums[1]):.2f}"


def loss_differences(results):
    """Mine, theirs, compared steps, the largest relative difference."""
    for mine, theirs in LOSS_PAIRS:
        if mine in results and theirs in results:
            a, b = results[mine][0]["loss"], results[theirs][0]["loss"]
            yield mine, theirs, len(b), max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


def loss_lines(results):
    for mine, theirs, steps, worst in loss_differences(results):
        yield f"{mine} and {theirs}: losses of {steps} steps differ by at most {worst:.1e}"


def table(args, results, warmup):
    versions = {run["version"] for runs in results.values() for run in runs if "version" in run}
    head = ("program", "s a step", "over rounds", "Pss MiB", "tracked")
    lines = [f"Model {args.model}, {args.ranks} ranks of 1 thread, float32; {args.rounds} "
             f"alternating rounds of {args.steps} timed steps",
             f"{cpu_name()}, {os.cpu_count()} cores; peers: {', '.join(sorted(versions)) or 'none'}",
             "", *grid([head, *rows_of(results, warmup)]), "",
             "s a step: median over rounds of the rounds' medians. Pss: of all ranks together, "
             "after the last step.",
             "alone: the mean of the processes, step by step; alone, slowest: the slowest of each "
             "step, as a job waits for it.",
             "tracked: MiB of parameters, gradients and optimizer state of the fullest rank."]
    ratios = list(ratio_rows(results, warmup))
    if ratios:
        head = ("ratio", "of medians", "over rounds", "of best", "of Pss")
        lines += ["", *grid([head, *ratios])]
    losses = list(loss_lines(results))
    if losses:
        lines += ["", *losses]
    return "\n".join(lines)
