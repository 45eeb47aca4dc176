"""The figures of report.html, each from the summary: HTML, or None where nothing is known."""
import bench_charts as charts
import bench_style
import bench_svg as svg
import bench_theory
import bench_timeline

MIB = 1 << 20
MEMORY_PARTS = (
    ("parameters", "parameters", "blue"), ("gradients", "gradients", "orange"),
    ("optimizer", "optimizer state", "green"), ("buffers", "buffers", "purple"),
    ("activations_peak", "activations at their peak", "sky"),
    ("mapped_files", "mapped files", "pale"), ("other", "rest", "grey"))
SPLIT_PARTS = (
    ("compute_s", "forward and backward", "blue"), ("wait_s", "waiting for other ranks", "red"),
    ("optimizer_s", "optimizer and clipping", "green"), ("data_s", "waiting for data", "yellow"))


def names_of(summary):
    return [run["strategy"] for run in summary["runs"]]


def colour_of(summary, run):
    return bench_style.strategy_colour(names_of(summary), run["strategy"])


def why_failed(run):
    return f"exit code {run['exit_code']}: {run.get('reason') or 'no reason given'}"


def seconds(value):
    if value is None:
        return "–"
    return f"{value:.3f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def bytes_text(value):
    return f"{value / MIB:,.1f} MiB"


def figure(picture, caption, legend=""):
    if picture is None:
        return None
    return f"<figure>{legend}{picture}<figcaption>{svg.escape(caption)}</figcaption></figure>"


def throughput(summary):
    rows = []
    for run in summary["runs"]:
        step, rate = run["step_s"], run["tokens_per_s"]
        if run["exit_code"] != 0 or rate is None:
            rows.append({"name": run["strategy"], "value": None, "note": why_failed(run)})
            continue
        tokens = rate * step["median"]
        times = "" if run.get("speedup") is None else f" · {run['speedup']:.2f}x"
        rows.append({
            "name": run["strategy"], "colour": colour_of(summary, run), "value": rate,
            "low": tokens / step["max"], "high": tokens / step["min"],
            "note": f"{rate:,.0f}{times}",
            "tip": f"{run['strategy']}: {rate:,.0f} tokens/s\nstep {seconds(step['median'])}, from "
                   f"{seconds(step['min'])} to {seconds(step['max'])}, {step['n']} timed"})
    caption = "Longer is faster. The median of the timed steps; the line spans the slowest and " \
              "the fastest step. x: by the rate of single."
    return figure(charts.bars(rows, "tokens per second, all ranks", "Throughput by strategy"),
                  caption)


def step_split(summary):
    rows, floor = [], None
    for run in summary["runs"]:
        split = run.get("split")
        bars = []
        if run["exit_code"] == 0 and split:
            parts = [(name, bench_style.colour(colour), max(0.0, split.get(field) or 0.0))
                     for field, name, colour in SPLIT_PARTS]
            total = sum(value for _, _, value in parts)
            bars = [{"parts": parts, "mark": None, "tell": seconds,
                     "tip": f"{run['strategy']}: {seconds(total)} in all"}]
            if run["strategy"] == "alone":
                floor = (total, f"alone, the floor: {seconds(total)}")
        reason = why_failed(run) if run["exit_code"] != 0 else "not recorded"
        rows.append({"name": run["strategy"], "bars": bars, "reason": reason})
    most = max((sum(value for _, _, value in bar["parts"]) for row in rows for bar in row["bars"]),
               default=0)
    unit, divide = ("seconds", 1) if most >= 1 else ("milliseconds", 1e-3)
    legend = svg.legend([(name, bench_style.colour(colour)) for _, name, colour in SPLIT_PARTS])
    caption = "Mean of the middle half of the timed steps, rank 0 (alone: all processes). " \
              "Waiting is what communication cost beyond the arithmetic that ran meanwhile."
    return figure(charts.stacked(rows, unit + " a step", "Where a step's time goes", divide, floor),
                  caption, legend)


def loss(summary, series):
    curves, legend = [], []
    for at, run in enumerate(summary["runs"]):
        found = series.get(run["strategy"]) or {"points": [], "end": None}
        if not found["points"]:
            continue
        colour, dashes = colour_of(summary, run), charts.dashes(at)
        last = run["loss"]["last"]
        tip = f"{run['strategy']}: last loss {'–' if last is None else format(last, '.4f')}"
        end = found["end"] if run["exit_code"] == 0 else None
        curves.append({"name": run["strategy"], "colour": colour, "dashes": dashes, "end": end,
                       "points": found["points"], "tip": tip,
                       "end_tip": end and f"{run['strategy']}: validation {end[1]:.4f}"})
        failed = "" if run["exit_code"] == 0 else " (failed)"
        legend.append((run["strategy"] + failed, colour, dashes))
    nats = summary["data"].get("unigram_nats")
    level = (nats, f"bytes taken one by one: {nats:.3f}") if nats is not None else None
    picture = charts.lines(curves, "tokens trained", "nats a byte", "Training loss over tokens",
                           level)
    caption = "Loss of each step; circles: the held-out text. Lines that lie on each other train " \
              "the same thing. alone trains one rank's share of the tokens."
    return figure(picture, caption, svg.legend(legend))


def step_times(summary, series):
    """Every step's length, so that a disturbed or drifting run is seen."""
    curves, legend = [], []
    for at, run in enumerate(summary["runs"]):
        steps = (series.get(run["strategy"]) or {}).get("steps") or []
        if not steps:
            continue
        colour, dashes = colour_of(summary, run), charts.dashes(at)
        curves.append({"name": run["strategy"], "colour": colour, "dashes": dashes, "end": None,
                       "points": steps, "tip": run["strategy"]})
        legend.append((run["strategy"], colour, dashes))
    picture = charts.lines(curves, "step", "seconds", "Length of each step", least=0)
    warmup = summary["config"]["warmup"]
    caption = f"Rank 0's steps in order; the first {warmup} are not timed. Peaks that one run " \
              "alone has are other work on the machine."
    return figure(picture, caption, svg.legend(legend))


def memory_bar(strategy, rank, part):
    parts = [(name, bench_style.colour(colour), max(0, part.get(field) or 0))
             for field, name, colour in MEMORY_PARTS]
    pss, peak = part.get("pss"), part.get("rss_peak")
    tip = f"{strategy}, rank {rank}"
    if peak is not None:
        tip += f": {bytes_text(peak)} resident at the peak"
    return {"parts": parts, "tip": tip, "tell": bytes_text, "mark": pss,
            "mark_tip": None if pss is None else f"{strategy}, rank {rank}: pss {bytes_text(pss)}"}


def memory(summary):
    rows = [{"name": run["strategy"], "reason": why_failed(run),
             "bars": [memory_bar(run["strategy"], rank, part)
                      for rank, part in enumerate(run["memory"])] if run["exit_code"] == 0 else []}
            for run in summary["runs"]]
    used = [(name, bench_style.colour(colour)) for field, name, colour in MEMORY_PARTS
            if any(part.get(field) for run in summary["runs"] for part in run["memory"])]
    caption = "A bar for each rank, up to its resident peak. The upright line is pss: resident " \
              "now, shared pages divided among those who map them. The parts count what the " \
              "rank owns; the rest also holds its peers' shared pages."
    return figure(charts.stacked(rows, "MiB a rank", "Memory by part", MIB), caption,
                  svg.legend(used))


def traffic(summary):
    found = [bench_theory.traffic(run, summary["parameters"]) for run in summary["runs"]
             if run["exit_code"] == 0]
    rows = []
    for one in filter(None, found):
        lines = [("theory", "grey", one.theory, f"theory, {one.formula}: {one.meaning}"),
                 ("ring", "blue", one.ring, "what ran, as a ring would send it"),
                 ("stored", "orange", one.stored, "written by the processor, in shared memory"),
                 ("wire", "purple", one.wire, "sent over a network")]
        for name, colour, value, meaning in lines:
            if name == "wire" and not value:
                continue
            rows.append({"name": f"{one.strategy}" if name == "theory" else "", "value": value,
                         "colour": bench_style.colour(colour),
                         "note": f"{value / MIB:,.1f}" + (f" · {one.formula}" if name == "theory"
                                                          else ""),
                         "tip": f"{one.strategy}: {meaning}\n{value:,.0f} bytes"})
    if not rows:
        return None
    entries = [("theory", "grey"), ("what ran, as a ring sends it", "blue"),
               ("written to memory", "orange")]
    if any(one and one.wire for one in found):
        entries.append(("sent over a network", "purple"))
    caption = "A rank and step; P: bytes of all parameters in fp32, N: ranks. With the shared " \
              "gather FSDP's parameters stay where they are, and a third of its theory is left: " \
              "P(N-1)/N."
    picture = charts.bars(rows, "MiB a rank and step", "Bytes moved against theory", MIB)
    return figure(picture, caption,
                  svg.legend([(name, bench_style.colour(colour)) for name, colour in entries]))


def timelines(summary, traces):
    """One figure a strategy that has a trace, as (name, HTML)."""
    drawn = []
    for run in summary["runs"]:
        ranks = traces.get(run["strategy"])
        name = run["strategy"]
        if ranks and name == "alone":
            ranks = bench_timeline.aligned(ranks, summary["config"]["warmup"])
        found = ranks and bench_timeline.draw(ranks, summary["config"]["warmup"],
                                              f"Timeline of one step of {name}")
        if not found:
            continue
        picture, kinds, step = found
        caption = f"Step {step.of}, of median length: {seconds((step.end - step.begin) / 1e6)}."
        if name == "alone":
            caption += " Nothing holds these processes together: each is shown from its own begin."
        if len(ranks) > bench_timeline.WIDEST_RANKS:
            caption += f" The first {bench_timeline.WIDEST_RANKS} of {len(ranks)} ranks."
        drawn.append((name, figure(f'<div class="scroll">{picture}</div>', caption,
                                   svg.legend(kinds))))
    return drawn
