"""From what the runs wrote to the numbers of summary.json."""
import math
import statistics
import sys

import bench_runs

SCHEMA = 1
PARALLEL = ("ddp", "zero1", "fsdp")  # They add the ranks' gradients to the same bits.
# Of single against ddp and fsdp: other sums, other rounding. Gradients of the whole batch are
# rounded to bf16 once, those of the ranks' parts each.
LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2}


def of_kind(events, kind):
    return [event for event in events if event["event"] == kind]


def only(events, kind):
    found = of_kind(events, kind)
    return found[-1] if found else None


def timed_steps(run, warmup):
    """The steps that count, of all processes of the run."""
    return [step for events in run.events for step in of_kind(events, "step")
            if step["step"] > warmup]


def spread(values):
    """Median, extremes and the range of the middle half."""
    if not values:
        return {"median": None, "min": None, "max": None, "iqr": None, "n": 0}
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "iqr": quartiles[2] - quartiles[0], "n": len(values)}


def median_of(steps, field):
    return statistics.median(step[field] for step in steps) if steps else None


def middle_half(steps):
    """The steps without the quarters that were fastest and slowest."""
    order = sorted(steps, key=lambda step: step["step_s"])
    quarter = len(order) // 4
    return order[quarter:len(order) - quarter]


def split_of(steps):
    """Where the time of a step goes, as means that add up: compute_s, wait_s, optimizer_s (without
    its waits) and data_s (before the step). None where nothing is known."""
    steps = middle_half(steps)
    if not steps or any(step.get("optimizer_wait_s") is None for step in steps):
        return None

    def mean(field):
        return statistics.fmean(step[field] for step in steps)

    optimizer = mean("optimizer_s") - mean("optimizer_wait_s")
    return {"compute_s": mean("step_s") - mean("comm_wait_s") - optimizer,
            "wait_s": mean("comm_wait_s"), "optimizer_s": optimizer, "data_s": mean("data_s")}


def memory_of(run):
    """Per rank: the parts that train_gpt tracked. alone has them from each process."""
    ends = [only(events, "end") for events in run.events]
    return [part for end in ends if end for part in end["memory"]]


def describe(run, warmup):
    steps = timed_steps(run, warmup)
    first = of_kind(run.events[0], "step")
    end = only(run.events[0], "end") or {}
    step_s = spread([step["step_s"] for step in steps])
    tokens = None
    if steps:  # The processes of alone work at the same time.
        tokens = steps[0]["tokens"] * len(run.events) / step_s["median"]
    return {
        "strategy": run.planned.strategy, "ranks": run.planned.ranks,
        "threads": run.planned.threads, "exit_code": run.exit_code, "reason": run.reason,
        "steps": len(first), "other_load": run.other_load, "step_s": step_s, "tokens_per_s": tokens,
        "optimizer_s": median_of(steps, "optimizer_s"), "data_s": median_of(steps, "data_s"),
        "split": split_of(steps),
        "comm": end.get("comm"), "overlap_share": end.get("overlap_share"),
        "memory": memory_of(run),
        "loss": {"first": first[0]["loss"] if first else None,
                 "last": first[-1]["loss"] if first else None,
                 "validation": end.get("validation_loss")},
        "params_xxh3": end.get("params_xxh3"),
    }


def compare(descriptions):
    """Adds what relates a run to the others: speedup, efficiency, exposed_s."""
    by_name = {run["strategy"]: run for run in descriptions}
    single, alone = by_name.get("single"), by_name.get("alone")

    def median(run):
        return run["step_s"]["median"] if run else None

    for run in descriptions:
        mine, floor = median(run), median(alone)
        known = mine is not None and floor is not None
        run["efficiency"] = floor / mine if known else None
        run["exposed_s"] = mine - floor if known else None
        rate, base = run["tokens_per_s"], single and single["tokens_per_s"]
        run["speedup"] = rate / base if rate and base else None
    return descriptions


def describe_all(options, runs):
    """The runs in the order of the table, each also related to the others."""
    order = sorted(runs, key=lambda run: options.strategies.index(run.planned.strategy))
    return compare([describe(run, options.warmup) for run in order])


def losses(run):
    return [step["loss"] for step in of_kind(run.events[0], "step")]


def agree(runs):
    """Do the strategies train the same thing? None where there is nothing to compare."""
    by_name = {run.planned.strategy: run for run in runs if run.exit_code == 0}
    outcomes = {name: (losses(by_name[name]), only(by_name[name].events[0], "end")["params_xxh3"])
                for name in PARALLEL if name in by_name}
    bitwise, difference = same(outcomes.values()), None
    if "single" in by_name and outcomes:
        reference = losses(by_name["single"])
        difference = max(relative_difference(mine, theirs)
                         for found, _ in outcomes.values()
                         for mine, theirs in zip(reference, found))
    dtypes = {only(run.events[0], "start")["config"].get("dtype", "fp32")
              for run in by_name.values()}
    limit = max((LOSS_TOLERANCE[dtype] for dtype in dtypes), default=None)
    is_near = difference is None or difference <= limit
    named = [outcomes[name] for name in ("ddp", "fsdp") if name in outcomes]
    return {"ddp_fsdp_bitwise": same(named),
            "parallel_bitwise": bitwise,
            "single_max_rel_loss_diff": None if difference == math.inf else difference,
            "single_limit": limit,
            "ok": bitwise is not False and is_near}


def same(outcomes):
    """Whether all are equal, or None where there are no two."""
    first, *others = list(outcomes) or [None]
    return all(outcome == first for outcome in others) if others else None


def relative_difference(mine, theirs):
    """Of two losses, where None is one that is not finite: it is near to its like alone."""
    if mine is None or theirs is None:
        return 0.0 if mine is theirs else math.inf
    return abs(mine - theirs) / max(abs(mine), sys.float_info.min)


def configuration(options, start):
    config = dict(start["config"]) if start else {}
    config.pop("threads", None)  # Differs between the runs.
    micro_batch, global_batch = bench_runs.divide_batch(options)
    return {**config, "ranks": options.ranks, "model": options.model,
            "strategies": options.strategies, "steps": options.steps, "warmup": options.warmup,
            "micro-batch": micro_batch, "global-batch": global_batch,
            "train_gpt": options.training_flags}


def summarise(options, machine, data, runs, began):
    starts = [only(events, "start") for run in runs for events in run.events]
    # Alone trains one rank's share; the others agree on the global batch.
    whole = [only(run.events[0], "start") for run in runs if run.planned.strategy != "alone"]
    start = next((event for event in [*whole, *starts] if event), None)
    facts = start or {}
    text = facts.get("data") or {}
    return {
        "schema": SCHEMA, "unix_time": int(began),
        "convoy": facts.get("convoy") or {"version": None, "commit": None, "build_type": None},
        "libtorch": facts.get("libtorch"), "machine": machine,
        "config": configuration(options, start), "parameters": facts.get("parameters"),
        "data": {"paths": data.paths, "bytes": text.get("bytes"), "xxh3": text.get("xxh3"),
                 "unigram_nats": text.get("unigram_nats"),
                 "validation_windows": text.get("validation_windows")},
        "runs": describe_all(options, runs),
        "agreement": agree(runs),
    }
