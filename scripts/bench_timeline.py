"""The timeline of one step: reads a Chrome trace and draws a band of rows for each rank."""
import dataclasses
import json
import statistics

import bench_style
import bench_svg as svg

WIDTH = 1120
LEFT = 128
BAR = 17
LEAST = 0.3  # What is shorter is not drawn, gathers excepted.
MOST_SPANS = 4000  # In one drawing: more are too narrow to be seen.
WIDEST_RANKS = 8

# What a span is, by its category and name: its word in the legend, and its colour.
KINDS = {
    "data": ("waiting for data", "yellow"), "forward": ("forward", "sky"),
    "backward": ("backward", "blue"), "optimizer": ("optimizer and clipping", "green"),
    "wait": ("waiting for other ranks", "red"), "gather": ("gather of a unit", "purple"),
    "comm": ("collective in flight", "orange"), "other": ("other", "pale"),
}


@dataclasses.dataclass
class Span:
    name: str
    what: str
    of: str
    category: str
    row: str
    begin: float  # Microseconds, as in the file.
    end: float
    bytes: int

    @property
    def kind(self):
        if self.category == "comm":
            return "gather" if self.what.startswith("gather") else "comm"
        if self.category in ("wait", "data", "optimizer"):
            return self.category
        return next((kind for kind in ("forward", "backward") if kind in self.what), "other")


def read(paths):
    """Spans of each rank, in rank order: of one file with all ranks, or of a file for each. None
    where a file is missing or is no trace."""
    ranks = {}
    try:
        for at, path in enumerate(paths):
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
            rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
                    if event["ph"] == "M" and event["name"] == "thread_name"}
            for event in events:
                if event["ph"] != "X":
                    continue
                arguments = event.get("args", {})
                rank = at if len(paths) > 1 else event["pid"]
                ranks.setdefault(rank, []).append(Span(
                    event["name"], arguments.get("what", event["name"]), arguments.get("of", ""),
                    event.get("cat", ""), rows.get((event["pid"], event["tid"]), "training"),
                    event["ts"], event["ts"] + event["dur"], arguments.get("bytes", 0)))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [ranks[rank] for rank in sorted(ranks)] or None


def typical_step(ranks, warmup):
    """Of rank 0's timed steps the one of median length: its span, or None."""
    steps = [span for span in ranks[0] if span.what == "step" and span.of.isdigit()]
    steps = [span for span in steps if int(span.of) > warmup] or steps
    if not steps:
        return None
    middle = statistics.median_low(span.end - span.begin for span in steps)
    return next(span for span in steps if span.end - span.begin == middle)


def aligned(ranks, warmup):
    """Each rank's spans moved so that its step of the same number begins with rank 0's."""
    step = typical_step(ranks, warmup)
    moved = []
    for spans in ranks:
        own = next((span for span in spans if step and span.what == "step" and span.of == step.of),
                   None)
        shift = step.begin - own.begin if own else 0.0
        moved.append([dataclasses.replace(span, begin=span.begin + shift, end=span.end + shift)
                      for span in spans])
    return moved


def within(spans, step):
    """What a rank did meanwhile, less the frame around the step and what has no length."""
    return [span for span in spans
            if span.end > step.begin and span.begin < step.end and span.what != "step"
            and not (span.what == "backward" and span.category == "compute")]


def lines_of(spans):
    """The rows of a rank from above: (name, spans). Phases, below them units; then waits, gathers
    and collectives, each by lane."""
    phases = [span for span in spans if span.row.startswith("training") and "unit" not in span.what]
    units = [span for span in spans if span.row.startswith("training") and "unit" in span.what]
    rows = [("phase", phases), ("unit", innermost(units))]
    for name in ("waiting", "gathers", "collectives"):
        lanes = {span.row for span in spans if span.row.split(" ")[0] == name}
        for lane in sorted(lanes, key=lambda lane: (len(lane), lane)):
            rows.append((lane, [span for span in spans if span.row == lane]))
    return [(name, found) for name, found in rows if found]


def innermost(units):
    """Without the units that others lie in: their own share is what is left free."""
    return [unit for unit in units
            if not any(other is not unit and unit.begin <= other.begin and other.end <= unit.end
                       for other in units)]


def short_name(span):
    """What fits a bar: the unit, the bucket's number, else the name."""
    if span.what in ("unit forward", "unit backward") or span.kind == "gather":
        return span.of
    if span.kind in ("comm", "wait"):
        return span.of.split(" (")[0] or span.what
    return span.name


def milliseconds(microseconds):
    return f"{microseconds / 1000:.{3 if abs(microseconds) < 1e4 else 1}f} ms"


def tooltip(span, step, rank):
    text = f"rank {rank}: {span.name}\n{milliseconds(span.begin - step.begin)} + " \
           f"{milliseconds(span.end - span.begin)}"
    return text + (f"\n{span.bytes:,} bytes" if span.bytes else "")


def draw_row(spans, scale, y, step, rank):
    parts, marked = [], 0.0
    for at, span in enumerate(spans):
        x = scale(max(span.begin, step.begin))
        end = scale(min(span.end, step.end))
        if span.kind == "gather" and end - x < 10:
            following = scale(spans[at + 1].begin) if at + 1 < len(spans) else WIDTH - 10
            if x >= marked:
                parts += mark(span, x, min(following, WIDTH - 10) - x, y, step, rank)
                marked = x + 2.5
            continue
        if end - x < LEAST:
            continue
        colour = bench_style.colour(KINDS[span.kind][1])
        parts.append(svg.bar(x, y, max(end - x, 0.5), BAR - 3, colour, tooltip(span, step, rank),
                             "span"))
        name = svg.shortened(short_name(span), end - x - 8, svg.SMALL_PX)
        if name:
            parts.append(svg.text(x + 4, y + BAR - 6.5, name, f"inside on-{span.kind}"))
    return parts


def mark(span, x, room, y, step, rank):
    """A gather that takes no time to speak of, as where memory is shared: a stroke, and beside it
    the unit's name."""
    colour = bench_style.colour(KINDS["gather"][1])
    parts = [svg.bar(x, y, 2.5, BAR - 3, colour, tooltip(span, step, rank), "span")]
    name = svg.shortened(short_name(span), room - 8, svg.SMALL_PX)
    return parts + ([svg.text(x + 5, y + BAR - 6.5, name, "faint small")] if name else [])


def is_seen(span, scale, step):
    length = scale(min(span.end, step.end)) - scale(max(span.begin, step.begin))
    return span.kind == "gather" or length >= LEAST


def draw(ranks, warmup, label):
    """The typical step as SVG with its legend's kinds and its span, or None."""
    step = typical_step(ranks, warmup)
    if step is None:
        return None
    shown = ranks[:WIDEST_RANKS]
    scale = svg.Scale(step.begin, step.end, LEFT, WIDTH - 10)
    parts, y, kinds = [], 8, set()
    for rank, spans in enumerate(shown):
        seen = [span for span in within(spans, step) if is_seen(span, scale, step)]
        rows = lines_of(seen[:MOST_SPANS])
        height = BAR * max(1, len(rows)) + 8
        parts.append(svg.element("rect", x=0, y=svg.number(y), width=WIDTH,
                                 height=svg.number(height), rx=4, class_="band"))
        parts.append(svg.text(8, y + BAR, f"rank {rank}", "strong"))
        for at, (name, found) in enumerate(rows):
            top = y + 4 + BAR * at
            parts.append(svg.text(LEFT - 8, top + BAR - 6, name, "faint small", "end"))
            parts += draw_row(found, scale, top, step, rank)
            kinds.update(span.kind for span in found)
        y += height + 6
    axis = svg.Scale(0, (step.end - step.begin) / 1000, LEFT, WIDTH - 10)
    parts += svg.bottom_axis(axis, y, "milliseconds since the step began", count=10)
    entries = [(KINDS[kind][0], bench_style.colour(KINDS[kind][1])) for kind in KINDS
               if kind in kinds]
    return svg.picture(WIDTH, y + 42, parts, label, "wide"), entries, step
