"""The page of report.html around its figures: head, tiles, tables, foot."""
import datetime

import bench_style
import bench_svg as svg
import bench_table

escape = svg.escape


def card(heading, figure, intro=""):
    if figure is None:
        figure = '<p class="soft">Nothing to show: no run got that far.</p>'
    words = f'<p class="soft">{escape(intro)}</p>' if intro else ""
    return f"<section><h2>{escape(heading)}</h2>{words}{figure}</section>"


def headline(summary):
    config = summary["config"]
    ranks = config["ranks"]
    size = "" if not summary["parameters"] else f", {summary['parameters'] / 1e6:.1f} M parameters"
    return f"GPT {config['model']}{size}, {ranks} rank{'' if ranks == 1 else 's'}"


def badge(text, is_bad=False):
    return f'<span class="badge{" bad" if is_bad else ""}">{escape(text)}</span>'


def badges(summary):
    """What to know before reading any figure: do the runs agree, did one fail, was it quiet?"""
    found = [badge(text, "DISAGREE" in text or "ABOVE" in text)
             for text in bench_table.agreement(summary)]
    found += [badge(f"{run['strategy']} failed with exit code {run['exit_code']}: {run['reason']}",
                    True) for run in summary["runs"] if run["exit_code"] != 0]
    busy = " ".join(bench_table.disturbance(summary))
    return "".join(found) + (badge(busy, True) if busy else "")


def tile(summary, run):
    names = [other["strategy"] for other in summary["runs"]]
    mark = bench_style.strategy_colour(names, run["strategy"])
    if run["exit_code"] != 0:
        big, lines = "failed", [f"exit code {run['exit_code']}"]
    else:
        rate = run["tokens_per_s"]
        big = "–" if rate is None else f"{rate:,.0f}"
        lines = ["tokens/s", f"{bench_table.number(run['step_s']['median'])} s a step"]
        if run.get("efficiency") is not None and run["strategy"] not in ("single", "alone"):
            lines.append(f"{100 * run['efficiency']:.0f} % of the floor's speed")
        elif run["strategy"] == "alone":
            lines.append("the floor: no communication")
        elif run["strategy"] == "single":
            lines.append(f"{run['threads']} thread{'' if run['threads'] == 1 else 's'}")
    small = "".join(f"<small>{escape(line)}</small>" for line in lines)
    return f'<div class="tile" style="--mark:{mark}">{escape(run["strategy"])}' \
           f"<b>{escape(big)}</b>{small}</div>"


def table(rows, failed=()):
    """HTML from rows of text, the first the head. `failed`: name to reason, in place of dashes."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = []
    for row in rows[1:]:
        if row[0] in failed:
            body.append(f'<tr><td>{escape(row[0])}</td><td class="failed" '
                        f'colspan="{len(row) - 1}">{escape(failed[row[0]])}</td></tr>')
        else:
            body.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>' \
           f'<tbody>{"".join(body)}</tbody></table></div>'


def tables(summary):
    runs = summary["runs"]
    failed = {run["strategy"]: f"failed with exit code {run['exit_code']}: {run['reason']}"
              for run in runs if run["exit_code"] != 0}
    parts = ["<h3>Speed</h3>", table(bench_table.speed_rows(runs), failed),
             "<h3>Memory of the highest rank, MiB</h3>",
             table(bench_table.memory_rows(runs), failed),
             "<h3>Loss, nats a byte</h3>", table(bench_table.loss_rows(runs), failed)]
    communication = bench_table.communication_rows(runs)
    if len(communication) > 1:
        parts += ["<h3>Communication of a rank in a step</h3>", table(communication)]
    return "".join(parts)


def known(value):
    return "unknown" if value is None else value


def footer(summary):
    machine, convoy, data = summary["machine"], summary["convoy"], summary["data"]
    when = datetime.datetime.fromtimestamp(summary["unix_time"], datetime.timezone.utc)
    memory = machine.get("memory_bytes")
    where = [machine.get("cpu") or "unknown processor", f"{known(machine.get('cores'))} cores"]
    if memory:
        where.append(f"{memory / (1 << 30):.0f} GiB")
    where += [f"Linux {known(machine.get('kernel'))}",
              f"load {known(machine.get('load_1m'))} at the start"]
    text = ", ".join(data["paths"])
    if data.get("bytes"):
        text += f"; {data['bytes']:,} bytes, xxh3 {data.get('xxh3')}"
    flags = " ".join(f"{name}={value}" for name, value in summary["config"].items()
                     if value not in (None, [], False) and name not in ("strategies", "prompt"))
    entries = [("Machine", ", ".join(where)),
               ("Commit", f"{known(convoy.get('commit'))} (Convoy {known(convoy.get('version'))}, "
                          f"{known(convoy.get('build_type'))}), libtorch "
                          f"{known(summary['libtorch'])}"),
               ("When", when.strftime("%Y-%m-%d %H:%M UTC")), ("Text", text)]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries)
    rows += f"<dt>Flags</dt><dd><code>{escape(flags)}</code></dd>"
    return f"<footer><dl>{rows}</dl></footer>"


def timeline_cards(timelines):
    if not timelines:
        return card("One step, rank by rank", None)
    intro = "What each rank did, and below it what it waited for and what was in flight " \
            "meanwhile, by bucket and unit. The whole run is in STRATEGY.trace.json beside this " \
            "page, for ui.perfetto.dev or chrome://tracing."
    figures = "".join(f"<h3>{escape(name)}</h3>{html}" for name, html in timelines)
    return card("One step, rank by rank", figures, intro)


def document(summary, loss, throughput, split, memory, traffic, steps, timelines):
    config = summary["config"]
    what = f"{config['steps']} steps of {config.get('global-batch', '–')} x " \
           f"{config.get('seq', '–')} tokens, the first {config['warmup']} not timed; one thread " \
           "a rank, every strategy pinned to the same cores."
    tiles = "".join(tile(summary, run) for run in summary["runs"])
    pairs = "".join([card("Throughput", throughput), card("Where a step's time goes", split),
                     card("Loss", loss), card("Memory", memory),
                     card("Bytes moved, against theory", traffic), card("Every step", steps)])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<title>{escape("Convoy bench: " + headline(summary))}</title>
<style>{bench_style.SHEET}</style>
</head>
<body>
<header><h1>{escape(headline(summary))}</h1>
<p class="soft">{escape(what)}</p>
<div>{badges(summary)}</div></header>
<main>
<div class="tiles">{tiles}</div>
<div class="pairs">{pairs}</div>
{timeline_cards(timelines)}
<section><h2>The numbers</h2>{tables(summary)}</section>
</main>
{footer(summary)}
</body>
</html>
"""
