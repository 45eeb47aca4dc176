"""Colours and style sheet of report.html: on screen by day and by night, and on paper."""

# Okabe and Ito's colours, told apart with any kind of colour vision; darker by day where thin
# lines of them would be faint on white, lighter by night.
COLOURS = {
    "blue": ("#0072b2", "#4aa8e8"), "orange": ("#d98200", "#f0a93b"),
    "green": ("#00805f", "#2fc39a"), "purple": ("#a6508c", "#dd8fc3"),
    "sky": ("#56b4e9", "#8fd0f5"), "red": ("#c94f00", "#ff8a4c"),
    "yellow": ("#b59a00", "#e8d44d"), "grey": ("#737c87", "#9aa4b0"),
    "pale": ("#c3cad2", "#4b5562"), "dark": ("#454d57", "#d5dbe2"),
}
STRATEGY_COLOURS = {"single": "blue", "alone": "grey", "ddp": "orange", "zero1": "purple",
                    "fsdp": "green"}
MORE_COLOURS = ("red", "sky", "yellow", "dark")
DASHES = ("", "9 5", "2 4", "12 4 2 4", "5 3", "1 3")


def colour(name):
    return f"var(--{name})"


def strategy_colour(strategies, name):
    """The colour of a strategy, of its own also for one that is not known here."""
    if name in STRATEGY_COLOURS:
        return colour(STRATEGY_COLOURS[name])
    others = [other for other in strategies if other not in STRATEGY_COLOURS]
    return colour(MORE_COLOURS[others.index(name) % len(MORE_COLOURS)])


def variables(at):
    return "".join(f"--{name}:{pair[at]};" for name, pair in COLOURS.items())


LIGHT = ("color-scheme:light;--page:#f5f6f8;--card:#fff;--ink:#1b2027;--soft:#59626e;"
         "--rule:#e1e5ea;--over:#fff;--bad:#b3261e;--badpage:#fdecea;--good:#0b6b4f;"
         "--goodpage:#e3f4ee;"
         + variables(0))
DARK = ("color-scheme:dark;--page:#101317;--card:#191d23;--ink:#e8ebef;--soft:#a5afbb;"
        "--rule:#2c333c;--over:#10151b;--bad:#ff9d94;--badpage:#3a1f1d;--good:#6fdcb6;"
        "--goodpage:#16322a;"
        + variables(1))

SHEET = f"""
:root{{{LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}}
main,header,footer{{max-width:1200px;margin:0 auto;padding:0 20px}}
header{{padding-top:28px}}
h1{{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}}
h2{{font-size:16px;margin:0 0 2px}}
p{{margin:0 0 10px}}
.soft,figcaption,footer{{color:var(--soft);font-size:13px}}
.badge{{display:inline-block;border-radius:6px;padding:3px 10px;margin:6px 8px 0 0;font-size:14px;
  color:var(--good);background:var(--goodpage)}}
.badge.bad{{color:var(--bad);background:var(--badpage)}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:14px;
  margin:18px 0}}
.tile,section{{background:var(--card);border:1px solid var(--rule);border-radius:10px}}
.tile{{padding:12px 16px;border-top:4px solid var(--mark)}}
.tile b{{display:block;font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}}
.tile small{{display:block;color:var(--soft);font-size:13px}}
.pairs{{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}}
section{{padding:16px 18px;margin:0 0 14px;min-width:0;break-inside:avoid}}
.pairs section{{margin:0}}
.pairs+section{{margin-top:14px}}
figure{{margin:0 0 14px}}
figure:last-child{{margin:0}}
figcaption{{margin-top:6px}}
h3{{font-size:14px;margin:10px 0 4px}}
.legend{{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;margin:4px 0 6px}}
.legend span{{display:inline-flex;align-items:center;gap:6px}}
.legend i{{width:12px;height:12px;border-radius:3px}}
.scroll{{overflow-x:auto}}
svg.chart{{display:block;width:100%;height:auto}}
.scroll svg.wide{{display:block;width:100%;min-width:880px;height:auto}}
svg text{{font-family:inherit;font-size:13px;fill:var(--ink)}}
svg .tick,svg .axis,svg .faint{{font-size:12px;fill:var(--soft)}}
svg .small{{font-size:11px}}
svg .inside{{font-size:11px;fill:#10151b;pointer-events:none}}
svg .on-backward,svg .on-optimizer,svg .on-gather,svg .on-wait{{fill:var(--over)}}
svg .span{{stroke:var(--page);stroke-width:.7}}
svg .strong{{font-weight:600}}
svg .failed{{fill:var(--bad)}}
svg .grid{{stroke:var(--rule);stroke-width:1}}
svg .whisker{{stroke:var(--ink);stroke-width:1.3}}
svg .floor{{stroke:var(--ink);stroke-width:1.3;stroke-dasharray:4 3}}
svg .bar{{stroke:var(--card);stroke-width:.8}}
svg .curve{{fill:none;stroke-linejoin:round;stroke-linecap:round}}
svg .band{{fill:var(--page)}}
table{{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}}
th,td{{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}}
th{{font-weight:600;color:var(--soft);vertical-align:bottom}}
th:first-child,td:first-child{{text-align:left;padding-left:0}}
td.failed{{color:var(--bad);text-align:left;white-space:normal}}
code{{font:12px ui-monospace,"Liberation Mono",monospace;overflow-wrap:anywhere}}
footer{{padding-bottom:32px}}
footer dl{{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 14px;margin:14px 0}}
footer dt{{font-weight:600}}
footer dd{{margin:0;overflow-wrap:anywhere}}
@media screen and (max-width:820px){{.pairs{{grid-template-columns:minmax(0,1fr)}}
  main,header,footer{{padding-left:12px;padding-right:12px}}section{{padding:12px}}
  h1{{font-size:22px}}}}
@media print{{:root{{{LIGHT}--page:#fff;}}
  body{{font-size:11pt}}main,header,footer{{max-width:none;padding:0}}
  .scroll{{overflow:visible}}.scroll svg.wide{{min-width:0}}
  table{{font-size:7.5pt}}th,td{{padding:2px 5px;white-space:normal}}
  *{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}}}
"""
