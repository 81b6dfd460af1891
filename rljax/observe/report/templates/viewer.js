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
    find('reference').hidden = !sample.answer;
    find('answer').textContent = sample.answer || '';
    const seen = new Map();
    const numbered = new Set(shown.spans.map((span) => span.version)).size > 1;
    find('response').replaceChildren(...shown.spans.map((span) => {
      if (span.version === null) return element('span', 'env', span.text);
      const made = element('span', 'v', span.text);
      if (numbered) made.prepend(element('sup', '', span.version));
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
      const made = element('span', 'area', `version ${version} · ${many(tokens, 'token')} · staleness ${stale}`);
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
