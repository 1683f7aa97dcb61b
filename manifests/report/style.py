"""The style sheet of a report. It asks for no file; light and dark follow the reader's system, and paper is light."""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --soft: #59626d; --line: #d9dde3;
  --kept: #0072b2; --removed: #d55e00; --faint: #e9a06a; --second: #009e73; --third: #56b4e9; --fourth: #cc79a7; --other: #8b95a1;
  --accent: #0072b2; --shade: #1b1f2455; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --panel: #1d2127; --ink: #e8ebef; --soft: #a3adb8; --line:
  #363d46;
  --kept: #4aa8e0; --removed: #f08a3c; --faint: #8a5226; --second: #2fc499; --third: #8fd0f5; --fourth: #e0a0c4; --other: #6d7783;
  --accent: #6bbcf0; --shade: #e8ebef55; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Noto Sans",
  "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
header, main, footer { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 36px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 21px; margin: 0 0 4px; letter-spacing: -0.005em; }
h3 { font-size: 15px; margin: 26px 0 8px; }
p { margin: 4px 0 12px; max-width: 76ch; }
a { color: var(--accent); }
small, .soft { color: var(--soft); font-size: 13px; }
code { font: 13px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
section { padding: 26px 0 22px; border-top: 1px solid var(--line); }
nav { margin: 18px 0 26px; display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 22px 0 8px; padding: 0; }
.tiles div { background: var(--panel); border-radius: 8px; padding: 12px 14px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 21px; font-weight: 600; line-height: 1.25; }
.tiles dd small { display: block; font-weight: 400; }
.bars, .funnel { list-style: none; margin: 10px 0 14px; padding: 0; }
.bars { display: grid; grid-template-columns: minmax(120px, 30%) 1fr minmax(70px, auto); column-gap: 14px; }
.bars li { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1; align-items: center; padding: 2px 0;
  break-inside: avoid; }
.card .bars { grid-template-columns: minmax(70px, 40%) 1fr auto; }
.bars .label small, .funnel .label small { display: block; line-height: 1.3; }
.figure { text-align: right; white-space: nowrap; font-size: 14px; }
.strip { width: 100%; height: 16px; display: block; background: var(--panel); border-radius: 2px; }
.funnel { display: grid; grid-template-columns: minmax(120px, 22%) 1fr auto auto; column-gap: 14px; }
.funnel li { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1; align-items: center; }
.band { width: 100%; height: 100%; min-height: 38px; display: block; align-self: stretch; }
.funnel .label { padding: 4px 0; }
.gone { color: var(--removed); font-size: 14px; white-space: nowrap; }
.mark.kept { fill: var(--kept); } .mark.removed { fill: var(--removed); } .mark.faint { fill: var(--faint); }
.mark.second { fill: var(--second); } .mark.third { fill: var(--third); } .mark.fourth { fill: var(--fourth); }
.mark.other { fill: var(--other); }
.band .mark.removed { fill: var(--faint); }
.mark:hover { opacity: .75; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin: 6px 0; }
.key { width: 12px; height: 12px; margin-right: 6px; vertical-align: -1px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(270px, 100%), 1fr)); gap: 14px; margin: 10px 0; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px 12px; break-inside: avoid; min-width: 0; }
.card h4 { font-size: 14px; line-height: 1.35; margin: 0; }
.card p { font-size: 13px; margin: 2px 0 0; line-height: 1.4; }
.hit { color: var(--removed); font-weight: 600; } .card .hit { white-space: nowrap; }
.plot { width: 100%; height: auto; display: block; margin: 4px 0; }
.plot text { font-size: 11px; fill: var(--soft); } .plot text.say { fill: var(--ink); font-size: 11.5px; }
.axis { stroke: var(--soft); stroke-width: 1; } .bound { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 2.5; }
.break { stroke: var(--paper); stroke-width: 3; fill: none; } .curve { stroke: var(--kept); stroke-width: 1.8; fill: none; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--accent); font-size: 14px; }
summary:focus-visible, a:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.scroll { overflow-x: auto; max-width: 100%; background:
  linear-gradient(to right, var(--paper) 24px, transparent 60px) left / 60px 100% no-repeat local,
  linear-gradient(to left, var(--paper) 24px, transparent 60px) right / 60px 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 20px 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 20px 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 13px; margin: 8px 0; overflow-wrap: normal; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; min-width: 11ch; max-width: 34ch; overflow-wrap: break-word; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td.words, td:first-child { white-space: normal; }
td.words { text-align: left; min-width: 16ch; max-width: 48ch; overflow-wrap: break-word; }
.heat td { min-width: 64px; }
.heat0 { background: none; } .heat1 { background: color-mix(in srgb, var(--removed) 10%, transparent); }
.heat2 { background: color-mix(in srgb, var(--removed) 20%, transparent); }
.heat3 { background: color-mix(in srgb, var(--removed) 32%, transparent); }
.heat4 { background: color-mix(in srgb, var(--removed) 46%, transparent); }
.heat5 { background: color-mix(in srgb, var(--removed) 62%, transparent); }
.unchecked li { margin: 6px 0; max-width: 86ch; } .unchecked { padding-left: 20px; }
footer { padding-top: 14px; padding-bottom: 40px; border-top: 1px solid var(--line); color: var(--soft); font-size: 13px; }
@media (max-width: 640px) {
  header, main, footer { padding-left: 16px; padding-right: 16px; }
  h1 { font-size: 25px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles dd { font-size: 20px; }
  .bars, .card .bars { grid-template-columns: 1fr auto; }
  .bars li { row-gap: 1px; padding: 5px 0; }
  .bars .strip { grid-row: 2; grid-column: 1 / -1; }
  .funnel { grid-template-columns: 1fr auto auto; column-gap: 10px; }
  .funnel li { row-gap: 1px; padding-top: 5px; }
  .funnel .band { grid-row: 2; grid-column: 1 / -1; height: 30px; min-height: 30px; }
  .funnel .label { padding: 0; }
}
@media print {
  :root { color-scheme: light; --paper: #ffffff; --panel: #f3f4f6; --ink: #000000; --soft: #444444; --line: #bbbbbb; --kept:
  #0072b2;
    --removed: #d55e00; --faint: #e9a06a; --second: #009e73; --third: #56b4e9; --fourth: #cc79a7; --other: #8b95a1;
  --accent: #000000; --shade: transparent; }
  body { font-size: 11px; } small, .soft, .figure, .gone, .legend, summary, table, .card p, .card h4, code { font-size: 10px; }
  h1 { font-size: 22px; } h2 { font-size: 15px; } h3 { font-size: 12px; } .tiles dd { font-size: 16px; }
  .tiles dt { font-size: 10px; } nav { display: none; } section { break-before: auto; } h2, h3 { break-after: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .cards { grid-template-columns: repeat(3, 1fr); }
}
"""
