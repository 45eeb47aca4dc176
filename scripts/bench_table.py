"""The summary as a table for a terminal of 100 columns."""
import textwrap

WIDTH = 100
MIB = 1 << 20
DISTURBED = 0.1  # Of the cores: when other work takes more than this, the times are not ours.


def number(value, digits=3, sign=False):
    if value is None:
        return "-"
    return f"{value:{'+' if sign else ''}.{digits}f}"


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def times(value):
    return "-" if value is None else f"{value:.2f}x"


def grouped(value):
    return "-" if value is None else f"{value:,.0f}"


def mib(value):
    return "-" if value is None else f"{value / MIB:,.0f}"


def grid(rows):
    """Lines of a table: the first column to the left, the others to the right, a rule below the
    head."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def wrapped(text):
    return textwrap.wrap(text, WIDTH)


def heading(summary):
    config, machine, convoy = summary["config"], summary["machine"], summary["convoy"]
    ranks = config["ranks"]
    what = (f"GPT {config['model']}, {grouped(summary['parameters'])} parameters, "
            f"{config['steps']} steps of {config.get('global-batch', '-')} x "
            f"{config.get('seq', '-')} bytes in {config.get('dtype', '-')}; {ranks} "
            f"rank{'s' if ranks != 1 else ''} of 1 thread")
    memory = machine["memory_bytes"]
    where = (f"{machine['cpu'] or 'unknown processor'}, {machine['cores']} cores, "
             f"{memory / (1 << 30):.0f} GiB, Linux {machine['kernel']}, load "
             f"{machine['load_1m']:.2f} at the start" if memory else "unknown machine")
    built = (f"Convoy {convoy['version']} ({convoy['commit']}, {convoy['build_type']}), libtorch "
             f"{summary['libtorch']}")
    return [*wrapped(what), *wrapped(where), *wrapped(built), *disturbance(summary)]


def disturbance(summary):
    """A warning where programs that are none of ours took part of the cores."""
    loads = [run["other_load"] for run in summary["runs"] if run["other_load"] is not None]
    cores = summary["machine"]["cores"]
    if not loads or max(loads) <= DISTURBED * cores:
        return []
    return wrapped(f"The machine was busy: other programs took up to {max(loads):.1f} of {cores} "
                   "cores while the runs went. Do not trust the times; run again when it is quiet.")


def text_lines(summary, note):
    data = summary["data"]
    if data["bytes"] is None:
        return []
    lines = wrapped(f"Text: {', '.join(data['paths'])}, {grouped(data['bytes'])} bytes, "
                    f"{data['validation_windows']} windows held out for validation")
    return lines + (wrapped(note) if note else [])


def speed_rows(runs):
    rows = [["", "step s", "fastest", "slowest", "tokens/s", "vs single", "vs alone", "exposed s",
             "optimizer", "data", "overlap"]]
    for run in runs:
        step, name = run["step_s"], run["strategy"]
        talks = name not in ("single", "alone")
        rows.append([
            name, number(step["median"]), number(step["min"]), number(step["max"]),
            grouped(run["tokens_per_s"]), times(run["speedup"]),
            times(run["efficiency"]) if talks else "-",
            number(run["exposed_s"], 3, sign=True) if talks else "-",
            number(run["optimizer_s"], 4), number(run["data_s"], 4), share(run["overlap_share"])])
    return rows


def speed(runs):
    legend = ("step s: median of the timed steps, from batch in hand to gradients cleared. "
              "vs alone: alone's step by this one, 1.00x costs nothing for communication; "
              "exposed: the seconds more. overlap: bytes whose reduction began before backward "
              "had ended.")
    return ["Speed", *grid(speed_rows(runs)), *wrapped(legend)]


def so_far(runs):
    """The speed of the runs that there are, without columns that nobody fills yet."""
    rows = speed_rows(runs)
    filled = [at for at in range(len(rows[0])) if any(row[at] != "-" for row in rows[1:])]
    return "\n".join(grid([[row[at] for at in filled] for row in rows])) + "\n"


def outcome(run):
    """What one line can say of a run that has ended well."""
    rate = grouped(run["tokens_per_s"])
    return f"{number(run['step_s']['median'])} s a step, {rate} tokens/s"


def memory_rows(runs):
    names = [("rss_peak", "rss peak"), ("pss", "pss"), ("parameters", "params"),
             ("gradients", "grads"), ("optimizer", "optimizer"), ("buffers", "buffers"),
             ("activations_peak", "activations"), ("mapped_files", "files"), ("other", "rest")]
    rows = [["", *(title for _, title in names)]]
    for run in runs:
        cells = []
        for field, _ in names:
            values = [part.get(field) for part in run["memory"]]
            known = values and all(value is not None for value in values)
            cells.append(mib(max(values)) if known else "-")
        rows.append([run["strategy"], *cells])
    return rows


def memory(runs):
    legend = ("The highest rank in each column. Shared memory: rss counts what a rank has "
              "touched, its peers' part too; pss shares it out; the parts count what the rank "
              "owns. rest: rss peak less all parts, unexplained (heap, peers' shared pages, "
              "backward's temporaries).")
    return ["Memory of a rank, MiB", *grid(memory_rows(runs)), *wrapped(legend)]


def communication_rows(runs):
    rows = [["", "operation", "calls", "payload MiB", "copied MiB", "wire MiB", "wait s"]]
    for run in runs:
        for operation, stats in (run["comm"] or {}).items():
            rows.append([run["strategy"], operation, f"{stats['calls']:.1f}",
                         *(f"{stats[f'{kind}_bytes'] / MIB:,.2f}"
                           for kind in ("payload", "copied", "wire")), number(stats["wait_s"], 4)])
    return rows


def communication(runs):
    rows = communication_rows(runs)
    if len(rows) == 1:
        return []
    return ["", "Communication of a rank in a step", *grid(rows)]


def loss_rows(runs):
    rows = [["", "first loss", "last loss", "validation", "parameters (xxh3)"]]
    for run in runs:
        values = run["loss"]
        rows.append([run["strategy"], number(values["first"], 4), number(values["last"], 4),
                     number(values["validation"], 4), run["params_xxh3"] or "-"])
    return rows


def loss(summary):
    nats = summary["data"]["unigram_nats"]
    lines = ["Loss, nats a byte", *grid(loss_rows(summary["runs"]))]
    if nats is not None:
        lines += wrapped(f"The held-out bytes taken one by one have an entropy of {nats:.4f} nats: "
                         "below that, the model has learned more than how often each byte comes. "
                         "alone trains one rank's share only.")
    return lines


def agreement(summary):
    found = summary["agreement"]
    lines = []
    names = [run["strategy"] for run in summary["runs"]
             if run["strategy"] in ("ddp", "zero1", "fsdp") and run["exit_code"] == 0]
    bitwise = found.get("parallel_bitwise", found["ddp_fsdp_bitwise"])
    if bitwise is not None and len(names) > 1:
        joined = " and ".join([", ".join(names[:-1]), names[-1]])
        lines.append(f"{joined}: the same bits in every loss and in the final parameters"
                     if bitwise else
                     f"{joined.upper()} DISAGREE: their losses or final parameters differ")
    difference = found["single_max_rel_loss_diff"]
    if difference is None and not found["ok"] and bitwise is not False:
        lines.append("SINGLE DISAGREES: a loss is finite in one strategy and not in the other")
    if difference is not None:
        limit = found.get("single_limit", 1e-3)
        lines.append(f"single: its losses differ by at most {difference:.1e} of their value "
                     f"({'within' if difference <= limit else 'ABOVE'} the limit of {limit:.0e})")
    return lines


def failures(runs):
    return [line for run in runs if run["exit_code"] != 0
            for line in wrapped(f"{run['strategy']} FAILED with exit code {run['exit_code']}: "
                                f"{run['reason']}")]


def render(summary, note):
    runs = summary["runs"]
    blocks = [heading(summary) + text_lines(summary, note), speed(runs), memory(runs),
              communication(runs)[1:], loss(summary), agreement(summary), failures(runs)]
    return "".join("\n".join(block) + "\n\n" for block in blocks if block)
