"""Pieces of inline SVG: escaped text, axes with round numbers, bars, legends."""
import html
import math

FONT_PX = 13
SMALL_PX = 11


def escape(text):
    return html.escape(str(text), quote=True)


def number(value):
    """A coordinate: two decimals are finer than any screen."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def attributes(names):
    return "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
                   for name, value in names.items() if value is not None)


def element(tag, content="", **names):
    return f"<{tag}{attributes(names)}>{content}</{tag}>" if content else \
        f"<{tag}{attributes(names)}/>"


def title(text):
    """The tooltip of the element that it stands in."""
    return f"<title>{escape(text)}</title>" if text else ""


def text(x, y, words, class_=None, anchor=None, fill=None):
    return element("text", escape(words), x=number(x), y=number(y), class_=class_,
                   text_anchor=anchor, style=f"fill:{fill}" if fill else None)


def line(x1, y1, x2, y2, class_, tip=""):
    return element("line", title(tip), x1=number(x1), y1=number(y1), x2=number(x2), y2=number(y2),
                   class_=class_)


def bar(x, y, width, height, fill, tip="", class_="bar"):
    return element("rect", title(tip), x=number(x), y=number(y), width=number(max(0, width)),
                   height=number(height), class_=class_, style=f"fill:{fill}")


def picture(width, height, parts, label, class_="chart"):
    """A drawing that scales with its place; `label` says to a screen reader what it shows."""
    return element("svg", "\n".join(parts), viewBox=f"0 0 {number(width)} {number(height)}",
                   class_=class_, role="img", aria_label=label)


def width_of(words, size=FONT_PX):
    """About how wide a text gets; rather too wide than too narrow."""
    wide = sum(1 for letter in words if letter in "mwMW@%")
    narrow = sum(1 for letter in words if letter in "ijl.,:;'|! ()[]ft1")
    return size * (0.58 * (len(words) - wide - narrow) + 0.9 * wide + 0.36 * narrow)


def shortened(words, room, size=FONT_PX):
    """The text, cut so that it fits; empty where not even five letters would."""
    if width_of(words, size) <= room:
        return words
    for kept in range(len(words) - 1, 4, -1):
        short = words[:kept].rstrip(" .,(") + "…"
        if width_of(short, size) <= room:
            return short
    return ""


def round_step(span, count):
    """1, 2 or 5 times a power of ten, so that `span` has about `count` steps."""
    raw = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def ticks(low, high, count=5):
    """Round values from `low` to `high`, both included where they are round."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    step = round_step(high - low, count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [at * step for at in range(first, last + 1)]


def tick_text(value, step):
    """As many decimals as the distance of the ticks asks for."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:,.{decimals}f}"


class Scale:
    """From values to places on an axis."""

    def __init__(self, low, high, start, end):
        self.low, self.high = low, high if high > low else low + 1
        self.start, self.end = start, end

    def __call__(self, value):
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def spread_out(places, least, low, high):
    """Moves places of labels as little as needed so that neighbours are `least` apart."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    moved = list(places)
    for before, at in zip(order, order[1:]):
        moved[at] = max(moved[at], moved[before] + least)
    limit = high
    for at in reversed(order):
        moved[at] = max(low, min(moved[at], limit))
        limit = moved[at] - least
    return moved


def bottom_axis(scale, y, unit, top=None, count=5, divide=1.0):
    """Ticks below a drawing with their unit, and lines up to `top`. Values are shown divided by
    `divide`."""
    values = ticks(scale.low / divide, scale.high / divide, count)
    step = values[1] - values[0] if len(values) > 1 else 1
    parts = []
    for value in values:
        x = scale(value * divide)
        if top is not None:
            parts.append(line(x, top, x, y, "grid"))
        parts.append(text(x, y + 16, tick_text(value, step), "tick", "middle"))
    parts.append(text((scale.start + scale.end) / 2, y + 33, unit, "axis", "middle"))
    return parts


def left_axis(scale, x, right, unit, count=5):
    values = ticks(scale.low, scale.high, count)
    step = values[1] - values[0] if len(values) > 1 else 1
    parts = [text(x - 44, scale.end - 12, unit, "axis")]
    for value in values:
        y = scale(value)
        parts += [line(x, y, right, y, "grid"),
                  text(x - 8, y + 4, tick_text(value, step), "tick", "end")]
    return parts


def legend(entries):
    """HTML above a drawing: (name, colour) or (name, colour, dashes)."""
    items = []
    for name, colour, *dashes in entries:
        if dashes:
            stroke = element("line", x1=1, y1=6, x2=27, y2=6, stroke_width=3,
                             stroke_dasharray=dashes[0] or None, style=f"stroke:{colour}")
            mark = element("svg", stroke, width=28, height=12, aria_hidden="true")
        else:
            mark = f'<i style="background:{colour}"></i>'
        items.append(f"<span>{mark}{escape(name)}</span>")
    return f'<p class="legend">{"".join(items)}</p>'
