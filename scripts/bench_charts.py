"""The drawings of report.html: lines over an axis, bars with a value, bars of parts."""
import math

import bench_style
import bench_svg as svg

WIDTH = 540
LEFT = 70  # Of names; longer ones are cut.
ROW = 34
BOTTOM = 42


def name_at(y, name, is_failed=False):
    short = svg.shortened(name, LEFT - 10)
    return svg.text(LEFT - 10, y + 4, short, "failed" if is_failed else None, "end")


def failed_row(y, reason):
    words = svg.shortened(f"failed: {reason}", WIDTH - LEFT - 10)
    return svg.text(LEFT + 6, y + 4, words, "failed")


def bars(rows, unit, label, divide=1.0):
    """One bar a row. `rows`: dicts with name, colour, value, low, high, note, tip; value None is a
    run that failed, for the reason in note."""
    known = [row for row in rows if row["value"] is not None]
    if not known:
        return None
    room = max(svg.width_of(row["note"]) for row in known) + 14
    most = max(max(row["value"], row.get("high") or 0) for row in known)
    scale = svg.Scale(0, most * 1.02 or 1, LEFT, WIDTH - max(20, min(room, 170)))
    end = 10 + ROW * len(rows)
    parts = svg.bottom_axis(scale, end, unit, top=6, count=5, divide=divide)
    for at, row in enumerate(rows):
        middle = 10 + ROW * (at + 0.5)
        parts.append(name_at(middle, row["name"], row["value"] is None))
        if row["value"] is None:
            parts.append(failed_row(middle, row["note"]))
            continue
        reach = scale(row["value"])
        parts.append(svg.bar(LEFT, middle - 11, reach - LEFT, 22, row["colour"], row["tip"]))
        if row.get("low") is not None and row.get("high") is not None:
            low, high = scale(row["low"]), scale(row["high"])
            parts.append(svg.line(low, middle, high, middle, "whisker", row["tip"]))
            parts += [svg.line(x, middle - 4, x, middle + 4, "whisker") for x in (low, high)]
            reach = max(reach, high)
        parts.append(svg.text(reach + 8, middle + 4, row["note"]))
    return svg.picture(WIDTH, end + BOTTOM, parts, label)


def group_height(row):
    """Several bars of one name stand closer than those of two names."""
    count = len(row["bars"])
    return max(ROW, count * (14 if count <= 4 else 9) + 12)


def stacked(rows, unit, label, divide=1.0, floor=None):
    """Bars of parts. `rows`: dicts with name, bars, reason; a bar is a dict with parts [(name,
    colour, value)], mark (a value or None) and tip. `floor`: (value, name) of a line through all.
    """
    sums = [sum(value for _, _, value in one["parts"]) for row in rows for one in row["bars"]]
    marks = [one["mark"] for row in rows for one in row["bars"] if one["mark"] is not None]
    most = max([*sums, *marks, floor[0] if floor else 0], default=0)
    if most <= 0:
        return None
    scale = svg.Scale(0, most * 1.03, LEFT, WIDTH - 16)
    top = 22 if floor else 8
    end = top + sum(group_height(row) for row in rows)
    parts = svg.bottom_axis(scale, end, unit, top=top - 4, count=5, divide=divide)
    y = top
    for row in rows:
        height = group_height(row)
        parts.append(name_at(y + height / 2, row["name"], not row["bars"]))
        if not row["bars"]:
            parts.append(failed_row(y + height / 2, row["reason"]))
        parts += group(row["bars"], scale, y + 5, height - 10)
        y += height
    if floor:
        x = scale(floor[0])
        parts.append(svg.line(x, top - 6, x, end, "floor"))
        is_far = x > WIDTH * 0.6
        parts.append(svg.text(x + (-6 if is_far else 6), top - 9, floor[1], "faint",
                              "end" if is_far else None))
    return svg.picture(WIDTH, end + BOTTOM, parts, label)


def group(bars_of_row, scale, y, height):
    parts = []
    each = height / max(1, len(bars_of_row))
    for at, one in enumerate(bars_of_row):
        low, thick = y + at * each + 0.5, max(1.0, each - 1)
        start = 0
        for name, colour, value in one["parts"]:
            tip = f"{one['tip']}\n{name}: {one['tell'](value)}"
            x, end = scale(start), scale(start + value)
            if end - x > 0.05:
                parts.append(svg.bar(x, low, end - x, thick, colour, tip))
            start += value
        if one["mark"] is not None:
            x = scale(one["mark"])
            parts.append(svg.line(x, low - 1, x, low + thick + 1, "whisker", one["mark_tip"]))
    return parts


def path_of(points, across, up):
    """A line with gaps where there is no value."""
    pieces, pen = [], "M"
    for x, y in points:
        if y is None or not math.isfinite(y):
            pen = "M"
            continue
        pieces.append(f"{pen}{svg.number(across(x))} {svg.number(up(y))}")
        pen = "L"
    return "".join(pieces)


def thinned(points, most=600):
    """Every n-th point and the last: more than a screen has dots is not drawn."""
    stride = math.ceil(len(points) / most)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def lines(series, x_unit, y_unit, label, level=None, least=None):
    """Curves. `series`: dicts with name, colour, dashes, points [(x, y)], end (x, y) or None, and
    tip. Those that lie on each other stay visible: the first are wide, the later ones thin and
    dashed. `level`: (value, name) of a horizontal line; `least`: a value to have on the axis."""
    values = [y for one in series for _, y in one["points"] if y is not None and math.isfinite(y)]
    if not values:
        return None
    values += [one["end"][1] for one in series if one["end"]]
    values += [level[0]] if level else []
    values += [least] if least is not None else []
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.5
    last = max(x for one in series for x, _ in one["points"])
    divide, prefix = (1e6, "million ") if last >= 2e6 else (1e3, "thousand ") if last >= 2e3 \
        else (1, "")
    left, right, top, end = 56, WIDTH - 16, 34, 300
    across = svg.Scale(0, last, left, right)
    up = svg.Scale(low if low == least else low - margin, high + margin, end, top)
    parts = svg.left_axis(up, left, right, y_unit)
    parts += svg.bottom_axis(across, end, prefix + x_unit, divide=divide)
    if level:
        y = up(level[0])
        parts += [svg.line(left, y, right, y, "floor", level[1]),
                  svg.text(right - 4, y - 6, level[1], "faint", "end")]
    count = len(series)
    for at, one in enumerate(series):
        width = 1.8 + 1.5 * (count - 1 - at)
        points = thinned(one["points"])
        parts.append(svg.element(
            "path", svg.title(one["tip"]), d=path_of(points, across, up), class_="curve",
            stroke_dasharray=one["dashes"] or None,
            style=f"stroke:{one['colour']};stroke-width:{width:.1f}"))
        if len(points) == 1 and points[0][1] is not None:
            parts.append(dot(across(points[0][0]), up(points[0][1]), one, one["tip"]))
    parts += [dot(across(one["end"][0]), up(one["end"][1]), one, one["end_tip"])
              for one in series if one["end"]]
    return svg.picture(WIDTH, end + BOTTOM, parts, label)


def dot(x, y, one, tip):
    return svg.element("circle", svg.title(tip), cx=svg.number(x), cy=svg.number(y), r=4.5,
                       style=f"fill:var(--card);stroke:{one['colour']};stroke-width:2")


def dashes(at):
    return bench_style.DASHES[at % len(bench_style.DASHES)]
