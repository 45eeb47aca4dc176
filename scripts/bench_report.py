#!/usr/bin/env python3
"""Writes report.html of a bench: one file, no scripts, nothing from elsewhere.

    scripts/bench_report.py build/bench/latest      # again, from the files of that bench

Reads summary.json, and where they are there <strategy>.jsonl and <strategy>.trace.json.
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True  # Nothing of ours appears in a clean checkout.

import bench_report_figures as figures
import bench_report_page as page
import bench_timeline


def read_series(path):
    """Losses of a run over the tokens that it had trained, its validation, its steps' lengths."""
    series = {"points": [], "end": None, "steps": []}
    tokens = 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return series
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # The last line of a run that was killed.
        if event.get("event") == "step":
            tokens += event.get("tokens") or 0
            series["points"].append((tokens, event.get("loss")))
            series["steps"].append((event.get("step"), event.get("step_s")))
        elif event.get("event") == "eval" and event.get("loss") is not None:
            series["end"] = (tokens, event["loss"])
    return series


def trace_paths(folder, run):
    """One file with all ranks; alone has one for each of its processes."""
    name = run["strategy"]
    if name != "alone":
        return [folder / f"{name}.trace.json"]
    return [folder / (f"{name}.{at}.trace.json" if at else f"{name}.trace.json")
            for at in range(run["ranks"])]


def render(summary, folder):
    """The text of report.html. `folder` has the files of the runs; those that are missing leave
    out what they would show."""
    runs = summary["runs"]
    series = {run["strategy"]: read_series(folder / f"{run['strategy']}.jsonl") for run in runs}
    traces = {run["strategy"]: bench_timeline.read(trace_paths(folder, run)) for run in runs}
    return page.document(summary, figures.loss(summary, series), figures.throughput(summary),
                         figures.step_split(summary), figures.memory(summary),
                         figures.traffic(summary), figures.step_times(summary, series),
                         figures.timelines(summary, traces))


def main():
    if len(sys.argv) != 2:
        print("usage: scripts/bench_report.py DIR", file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"bench_report: cannot read {folder / 'summary.json'}: {error}", file=sys.stderr)
        return 2
    (folder / "report.html").write_text(render(summary, folder), encoding="utf-8")
    print(folder / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
