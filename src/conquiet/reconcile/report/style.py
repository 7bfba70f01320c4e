"""The style sheet of a report, with the colours of light and dark mode as variables."""

from __future__ import annotations

from typing import Final

from conquiet.reconcile import Status

__all__ = ["CSS", "STATUS_CLASSES", "STATUS_NAMES"]

STATUS_NAMES: Final = {
    Status.MATCHED: "Matched",
    Status.DISCREPANCY_LOW: "Low discrepancy",
    Status.DISCREPANCY_MEDIUM: "Medium discrepancy",
    Status.DISCREPANCY_HIGH: "High discrepancy",
    Status.AFFILIATE_OVERCLAIMED: "Overclaimed",
    Status.INCOMPLETE_PLATFORM_DATA: "Incomplete platform data",
    Status.MISSING_PLATFORM_DATA: "No platform data",
}
STATUS_CLASSES: Final = dict(
    zip(STATUS_NAMES, ("ok", "low", "mid", "high", "over", "part", "none"), strict=True)
)

# Colours differ in lightness as well as in hue, for colour-blind readers and for printing.
CSS: Final = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --line: #e1e5ea; --grid: #e8ebef; --text: #1c2430; --soft: #5b6675;
  --ok: #1f8a7d; --low: #f2d06b; --mid: #f0a04b; --high: #c9542a; --over: #a81c54; --part: #b4bfcc; --none: #687485; --in: #ffffff;
  --bar: #4c78a8; --good: #1d7f73; --bad: #b3225c;
  --l0: #b3225c; --l1: #dd6b3d; --l2: #8d6cc0; --l3: #a87b1e; --l4: #2a9d8f; --l5: #3f8fd0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1b212a; --line: #2c3541; --grid: #2a323d; --text: #e8ecf1; --soft: #9aa7b6;
    --ok: #3bb8a8; --low: #f3d67f; --mid: #f0a857; --high: #e57f53; --over: #e0568c; --part: #8896a7; --none: #66727f; --in: #12161c;
    --bar: #6d9dd1; --good: #4fc9ba; --bad: #ff7fae;
    --l0: #f0699d; --l1: #f09468; --l2: #b79be8; --l3: #dcb255; --l4: #4fc9ba; --l5: #71b4ee;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 28px 24px 40px; max-width: 1180px; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 2px; overflow-wrap: anywhere; }
header p { margin: 0 0 18px; color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 12px; margin-bottom: 16px; }
.figure, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.figure { padding: 12px 14px 11px; border-left: 4px solid var(--line); }
.figure.good { border-left-color: var(--good); }
.figure.bad { border-left-color: var(--bad); }
.figure .what { color: var(--soft); font-size: 13px; }
.figure .value { font-size: 26px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.figure.bad .value { color: var(--bad); }
.figure .more { color: var(--soft); font-size: 12.5px; line-height: 1.35; }
main { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
section { padding: 16px 18px 14px; min-width: 0; }
main > .column { display: grid; gap: 16px; min-width: 0; align-content: start; }
section.wide { grid-column: 1 / -1; }
section > .kind { color: var(--soft); font-size: 12px; letter-spacing: .06em; text-transform: uppercase; }
h2 { font-size: 17px; line-height: 1.3; margin: 1px 0 10px; overflow-wrap: anywhere; }
section > p { margin: 8px 0 0; color: var(--soft); font-size: 12.5px; }
section > p.nothing { margin: 0 0 4px; font-size: 14px; padding: 14px; border: 1px dashed var(--line); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; overflow: hidden; }
svg text { fill: var(--text); font-size: 12.5px; font-family: inherit; }
svg text.soft { fill: var(--soft); font-size: 11.5px; }
svg text.in { fill: var(--in); font-size: 11.5px; font-weight: 600; }
svg text.in.low, svg text.in.mid, svg text.in.part { fill: #12161c; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .bar { fill: var(--bar); }
svg .track { fill: var(--grid); }
svg .range { stroke: var(--bar); stroke-width: 5; stroke-linecap: round; opacity: .38; }
svg .dot { fill: var(--bar); stroke: var(--card); stroke-width: 1.2; }
svg .dot.p50 { fill: var(--card); stroke: var(--bar); stroke-width: 2; }
svg .dot.p99 { fill: var(--bad); }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg .line.mean { stroke: var(--text); stroke-width: 3; }
svg rect.ok, .key i.ok { fill: var(--ok); background: var(--ok); }
svg rect.low, .key i.low { fill: var(--low); background: var(--low); }
svg rect.mid, .key i.mid { fill: var(--mid); background: var(--mid); }
svg rect.high, .key i.high { fill: var(--high); background: var(--high); }
svg rect.over, .key i.over { fill: var(--over); background: var(--over); }
svg rect.part, .key i.part { fill: var(--part); background: var(--part); }
svg rect.none, .key i.none { fill: var(--none); background: var(--none); }
.l0 { stroke: var(--l0); } .l1 { stroke: var(--l1); stroke-dasharray: 7 3; } .l2 { stroke: var(--l2); stroke-dasharray: 2 3; }
.l3 { stroke: var(--l3); stroke-dasharray: 9 3 2 3; } .l4 { stroke: var(--l4); } .l5 { stroke: var(--l5); stroke-dasharray: 7 3; }
circle.l0 { fill: var(--l0); } circle.l1 { fill: var(--l1); } circle.l2 { fill: var(--l2); } circle.l3 { fill: var(--l3); }
circle.l4 { fill: var(--l4); } circle.l5 { fill: var(--l5); } circle.mean { fill: var(--text); }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 10px 0 0; padding: 0; list-style: none; font-size: 12.5px; }
.key li { display: flex; align-items: center; gap: 6px; min-width: 0; }
.key i { flex: none; width: 12px; height: 12px; border-radius: 3px; }
.key svg { flex: none; width: 26px; height: 12px; }
.key b { font-weight: 600; font-variant-numeric: tabular-nums; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: var(--soft); font-size: 12.5px; text-align: right; padding: 3px 8px 5px; vertical-align: bottom; }
td { text-align: right; padding: 5px 8px; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
td.name { white-space: normal; overflow-wrap: anywhere; max-width: 300px; }
td.mini { width: 24%; min-width: 90px; }
td.mini svg { height: 14px; border-radius: 3px; }
td.score svg { display: inline-block; width: 52px; height: 8px; margin-right: 6px; border-radius: 4px; vertical-align: 1px; }
th.mini { text-align: left; }
tr.group td { color: var(--soft); border-top: 1px solid var(--line); padding-top: 9px; text-align: left; font-size: 12.5px; }
.times { margin-top: 12px; }
footer { margin-top: 18px; color: var(--soft); font-size: 12.5px; }
@media (max-width: 880px) {
  main { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 640px) {
  body { padding: 18px 12px 30px; }
  section { padding: 14px 14px 12px; }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 9px; }
  th, td { padding-left: 5px; padding-right: 5px; }
  td.score svg { display: none; }
}
@media print {
  body { max-width: none; padding: 0; }
  section, .figure { break-inside: avoid; }
}
"""
