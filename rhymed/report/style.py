"""The report's style sheet: light and dark, print, narrow screens. No script."""

CSS = """
:root { --ink: #1c2024; --soft: #5d666f; --ground: #fff; --card: #f6f7f9; --line: #dfe3e8;
        --mark: #ffe08a; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa4ae; --ground: #14171a; --card: #1e2327; --line: #343b42; --mark: #6b5310;
          --bad: #ff8a80 }
  figure img { filter: invert(.92) hue-rotate(180deg) }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1120px; padding: 24px; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 26px; margin: 0 } h2 { font-size: 19px; margin: 36px 0 10px; border-bottom: 1px solid var(--line) }
p { margin: 6px 0 } .soft { color: var(--soft) } .bad { color: var(--bad) }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(172px, 1fr)); gap: 10px; margin: 18px 0 }
.numbers div, article { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
                         padding: 10px 12px }
.numbers b { display: block; font-size: 20px; white-space: nowrap; font-variant-numeric: tabular-nums }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(430px, 1fr)); gap: 14px }
figure { margin: 0; break-inside: avoid } figure img { width: 100%; height: auto; border-radius: 6px; display: block }
figcaption { color: var(--soft); font-size: 13px; margin-bottom: 3px }
article { margin: 12px 0; break-inside: avoid-page } article h3 { margin: 0; font-size: 15px }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 8px 0 0; font: 13px/1.45 ui-monospace, monospace }
pre.prompt { color: var(--soft) } i.given { font-style: normal; border: 1px dashed #b87700; border-radius: 3px; }
mark { background: var(--mark); color: inherit; border-radius: 2px }
pre.type { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px }
table { border-collapse: collapse; width: 100% } .wide { overflow-x: auto }
td, th { text-align: left; vertical-align: top; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
th { color: var(--soft); font-weight: 500 } summary { cursor: pointer; color: var(--soft) }
code { font: 13px ui-monospace, monospace }
.settings td:first-child { white-space: nowrap; font: 13px/1.7 ui-monospace, monospace }
.settings td:last-child { width: 99% }
@media (max-width: 560px) { .pictures { grid-template-columns: 1fr } body { padding: 12px }
  .settings td { display: block; white-space: normal } .settings td:first-child { border: 0; padding-bottom: 0 }
  .settings th:last-child { display: none } }
@media print {
  :root { --ink: #000; --soft: #444; --ground: #fff; --card: #fff; --line: #bbb; --mark: #ffe08a; --bad: #900 }
  body { max-width: none; padding: 0; font-size: 11px } figure img { filter: none }
  .pictures { grid-template-columns: 1fr 1fr } mark { print-color-adjust: exact; -webkit-print-color-adjust: exact }
}
"""
