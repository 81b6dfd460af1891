"""Style and script of the report, inlined so that the page works offline."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #ffffff; --ink: #16181d; --soft: #4c515c; --muted: #767b87; --rule: #e3e3de;
  --s1: #2a6fdb; --s2: #159a6c; --s3: #e59500; --s4: #6a4fc9; --s5: #d6453d; --s6: #c94f9b;
  --s7: #0e93a8; --s8: #b9bcc4;
  --good: #0d7f56; --warn: #a86400; --bad: #c8322b;
  --good-tint: #e2f4ec; --warn-tint: #fdf1da; --bad-tint: #fce7e5;
  --v0: #cfe0fb; --v1: #cdeedd; --v2: #fde3b0; --v3: #e0d8fa; --v4: #fbd6d3; --v5: #f6d5e9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #111317; --card: #191c22; --ink: #eceef2; --soft: #b9bec9; --muted: #8b919e; --rule: #2b2f38;
    --s1: #5b9bf5; --s2: #35b98a; --s3: #f0ab2e; --s4: #9c86ee; --s5: #ee6b63; --s6: #e07ab8;
    --s7: #3bb8cc; --s8: #565c69;
    --good: #4cc795; --warn: #f0b24a; --bad: #f47d75;
    --good-tint: #143126; --warn-tint: #362a13; --bad-tint: #3b1d1c;
    --v0: #1f3c68; --v1: #164634; --v2: #5a3f0c; --v3: #3a2f6b; --v4: #5c2522; --v5: #552543;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink); line-height: 1.5; font-size: 15px;
  font-family: Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-feature-settings: "tnum", "cv11";
}
main, header { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 44px; padding-bottom: 22px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.022em; margin: 2px 0 8px; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 19px; letter-spacing: -0.012em; margin: 44px 0 4px; font-weight: 640; }
h2 + div { margin-top: 14px; }
h3 + table, h3 + .scroll { margin-top: 6px; }
h3 { font-size: 14px; margin: 0; font-weight: 620; letter-spacing: -0.003em; }
p { margin: 0; }
.lead { color: var(--soft); margin: 0 0 14px; max-width: 74ch; }
.brand { font-weight: 640; color: var(--muted); font-size: 13px; letter-spacing: 0.01em; }
.facts { color: var(--muted); font-size: 13px; display: flex; flex-wrap: wrap; gap: 3px 18px; }
.facts b { color: var(--soft); font-weight: 550; overflow-wrap: anywhere; }
.pill {
  display: inline-block; vertical-align: 5px; margin-left: 12px; padding: 3px 11px; border-radius: 99px;
  font-size: 12.5px; line-height: 1.4; font-weight: 600; letter-spacing: 0;
}
.pill.good { background: var(--good-tint); color: var(--good); }
.pill.warn { background: var(--warn-tint); color: var(--warn); }
.pill.bad { background: var(--bad-tint); color: var(--bad); }
.alert {
  background: var(--bad-tint); color: var(--bad); border-radius: 12px; padding: 12px 16px; margin: 16px 0 0;
  overflow-wrap: anywhere;
}
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 12px; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 14px; }
.tile { padding: 13px 16px 12px; min-width: 0; }
.tile .label { color: var(--muted); font-size: 12.5px; }
.tile .value { font-size: 22px; font-weight: 620; letter-spacing: -0.02em; line-height: 1.3; white-space: nowrap; }
.tile .value .from { color: var(--muted); font-weight: 500; }
.tile .note { color: var(--muted); font-size: 12.5px; overflow-wrap: anywhere; }
.tile.good .value { color: var(--good); }
.tile.warn .value { color: var(--warn); }
.tile.bad .value { color: var(--bad); }
.plots { display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 14px; margin-top: 14px; }
.two { display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 14px; align-items: start; }
.card { padding: 16px 18px 14px; min-width: 0; }
.plots .card { display: flex; flex-direction: column; }
.card > p { color: var(--muted); font-size: 13px; margin-top: 1px; }
.card svg { display: block; width: 100%; height: auto; margin-top: auto; padding-top: 10px; overflow: visible; }
.card svg text { font-family: inherit; font-feature-settings: "tnum"; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin-top: 8px; font-size: 12.5px; color: var(--soft); }
.legend span::before {
  content: ""; display: inline-block;
  width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; background: var(--c);
}
.missing { color: var(--muted); font-style: normal; padding: 18px 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--muted); font-weight: 520; font-size: 12.5px; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; padding-right: 0; padding-left: 14px; white-space: nowrap; }
tr.now td { font-weight: 600; }
td small { color: var(--muted); font-size: 12.5px; font-weight: 400; margin-left: 6px; }
.bar { height: 6px; border-radius: 3px; background: var(--s3); min-width: 2px; margin-top: 4px; }
.scroll { overflow-x: auto; }
.card > p.verdict { font-size: 13.5px; color: var(--soft); margin: 12px 0 2px; }
.viewer .controls { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 10px; }
.viewer .controls[hidden] { display: none; }
#turns { margin-top: 10px; }
.viewer button {
  font: inherit; font-size: 14px; font-weight: 550; color: var(--ink); background: var(--page); cursor: pointer;
  border: 1px solid var(--rule); border-radius: 9px; padding: 5px 13px;
}
.viewer button:hover:not(:disabled) { border-color: var(--muted); }
.viewer button:disabled { opacity: 0.4; cursor: default; }
.viewer button:focus-visible, summary:focus-visible, input:focus-visible {
  outline: 2px solid var(--s1); outline-offset: 2px; }
.viewer input { flex: 1; min-width: 120px; accent-color: var(--s1); }
.viewer .where { color: var(--muted); font-size: 13px; white-space: nowrap; }
.viewer .chips { display: flex; flex-wrap: wrap; gap: 6px; margin: 14px 0 4px; }
.chip { background: var(--page); border-radius: 7px; padding: 2px 9px; font-size: 13px; color: var(--soft); }
.chip b { color: var(--ink); font-weight: 600; }
.viewer .role { color: var(--muted); font-size: 12.5px; margin: 14px 0 4px; font-weight: 550; }
pre {
  margin: 0; padding: 12px 14px; border-radius: 10px; background: var(--page);
  white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13.5px/1.65 ui-monospace, "SF Mono", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  max-height: 420px; overflow: auto;
}
.v { border-radius: 4px; padding: 1px 0; box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.env { color: var(--muted); }
details { margin-top: 44px; }
summary { cursor: pointer; font-size: 19px; font-weight: 640; letter-spacing: -0.012em; margin-bottom: 10px; }
.config { columns: 2 420px; column-gap: 36px; font-size: 13px; }
.config div { display: flex; justify-content: space-between; gap: 16px; padding: 3px 0;
  border-bottom: 1px solid var(--rule); break-inside: avoid; }
.config span { color: var(--soft); overflow-wrap: anywhere; }
.config code { text-align: right; overflow-wrap: anywhere; }
code { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
footer { max-width: 1160px; margin: 40px auto 0; padding: 0 24px 40px; color: var(--muted); font-size: 12.5px; }
@media (max-width: 560px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 24px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 9px; }
  .tile .value { font-size: 19px; }
}
@media print { .viewer .controls { display: none; } .card, .tile { break-inside: avoid; } }
"""

JS = """
(() => {
  const data = document.getElementById('samples');
  if (!data) return;
  const samples = JSON.parse(data.textContent);
  const find = (name) => document.getElementById(name);
  const element = (kind, name, text) => {
    const made = document.createElement(kind);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const round = (value) => Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
  const chip = (label, value) => {
    const made = element('span', 'chip', label + ' ');
    made.append(element('b', '', value));
    return made;
  };
  let at = samples.length - 1, turn = 0;
  const show = () => {
    const sample = samples[at];
    find('where').textContent = `${at + 1} of ${samples.length}`;
    find('previous').disabled = at === 0;
    find('next').disabled = at === samples.length - 1;
    find('slider').value = at;
    const chips = [chip('step', sample.step), chip('task', sample.task), chip('member', sample.member),
      chip('reward', round(sample.reward))];
    for (const [name, value] of Object.entries(sample.reward_parts)) chips.push(chip(name, round(value)));
    chips.push(chip('tokens', sample.tokens), chip('ended by', sample.finish_reason));
    if (sample.staleness !== null) chips.push(chip('staleness', sample.staleness));
    if (sample.retries) chips.push(chip('retries', sample.retries));
    find('chips').replaceChildren(...chips);
    const several = sample.of > 1;
    find('turns').hidden = !several;
    turn = Math.min(Math.max(turn, 0), sample.turns.length - 1);
    const shown = sample.turns[turn];
    if (several) {
      find('turn').textContent = `turn ${turn + 1} of ${sample.of} · reward ${round(shown.reward)}`;
      find('back').disabled = turn === 0;
      find('on').disabled = turn === sample.turns.length - 1;
    }
    find('prompt').textContent = shown.shown;
    const seen = new Map();
    find('response').replaceChildren(...shown.spans.map((span) => {
      if (span.version === null) return element('span', 'env', span.text);
      const made = element('span', 'v', span.text);
      const stale = sample.trained_from - span.version;
      made.style.background = `var(--v${span.version % 6})`;
      made.title = `version ${span.version} · ${span.tokens} tokens · staleness ${stale}`;
      const before = seen.get(span.version) || 0;
      seen.set(span.version, before + span.tokens);
      return made;
    }));
    find('versions').replaceChildren(...[...seen].map(([version, tokens]) => {
      const stale = sample.trained_from - version;
      const many = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
      const made = element('span', '', `version ${version} · ${many(tokens, 'token')} · staleness ${stale}`);
      made.style.setProperty('--c', `var(--v${version % 6})`);
      return made;
    }));
  };
  const go = (to) => { at = Math.min(Math.max(to, 0), samples.length - 1); turn = 0; show(); };
  const turnTo = (to) => { turn = to; show(); };
  find('previous').onclick = () => go(at - 1);
  find('next').onclick = () => go(at + 1);
  find('back').onclick = () => turnTo(turn - 1);
  find('on').onclick = () => turnTo(turn + 1);
  find('slider').oninput = (event) => go(Number(event.target.value));
  find('viewer').onkeydown = (event) => {
    if (event.target.id === 'slider') return;
    if (event.key === 'ArrowLeft') go(at - 1);
    if (event.key === 'ArrowRight') go(at + 1);
    if (event.key === 'ArrowUp') turnTo(turn - 1);
    if (event.key === 'ArrowDown') turnTo(turn + 1);
  };
  show();
})();
"""
