"""The look of a page: one column that fits a phone, light or dark as the reader's system is.

Plots are drawn for white paper, so they lie on white cards in both. What is too wide (a table with many
columns) scrolls in its own box, never the page; plots shrink, because half a plot misleads.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #1c1f23; --faint: #5b636d; --back: #f5f6f8; --card: #ffffff;
  --line: #d6dae0; --good: #11703c; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7eb; --faint: #a2abb6; --back: #14171b; --card: #1e2329; --line: #3a414a;
    --good: #6fd39b; --bad: #ff8f86; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem; color: var(--text);
  background: var(--back); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.2rem 0 .5rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h2 + p { font-size: 1.1rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .4rem 0; max-width: 50rem; }
.facts, .notes { color: var(--faint); font-size: .88rem; }
.facts { max-width: none; }
.facts span { display: inline-block; margin-right: 1.2em; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; background: var(--card); font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border: 1px solid var(--line); text-align: right; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; }
td:not(:first-child) { min-width: 6em; }
.verdicts { list-style: none; padding: 0; }
.verdicts li { background: var(--card); border: 1px solid var(--line); border-left: .4rem solid;
  padding: .5rem .8rem; margin: .5rem 0; }
.verdicts li.holds { border-left-color: var(--good); }
.verdicts li.fails { border-left-color: var(--bad); }
.holds b { color: var(--good); }
.fails b { color: var(--bad); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 32rem), 1fr)); gap: 1rem;
  margin-top: 1rem; }
figure { margin: 0; padding: .6rem; background: #ffffff; color: #1c1f23; border: 1px solid var(--line);
  border-radius: .4rem; min-width: 0; }
figure svg { display: block; width: 100%; min-width: 20rem; height: auto; }
figcaption { font-size: .85rem; color: #5b636d; padding: .4rem .3rem 0; }
"""
