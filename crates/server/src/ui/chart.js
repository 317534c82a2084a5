
const CHART = { width: 560, height: 170, left: 28, right: 46, top: 8, bottom: 22, most: 80, window: 8 };

/** Tokens per second over the steps around each, by the engine's own clock. */
function speeds(steps) {
  return steps.map((_, index) => {
    const near = steps.slice(Math.max(0, index + 1 - CHART.window), index + 1);
    const sum = (field) => near.reduce((total, step) => total + step[field], 0);
    return (1000 * sum("tokens")) / Math.max(sum("ms"), 1e-3);
  });
}

/** A round number that is not less. */
function ceiling(value) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return unit * [1, 2, 5, 10].find((factor) => factor * unit >= value);
}

function drawChart(parent, all) {
  const { width, height, left, right, top, bottom, most } = CHART;
  const steps = all.slice(-most), rates = speeds(all).slice(-most);
  const tokensMax = Math.max(4, ...steps.map((step) => step.tokens)), rateMax = ceiling(Math.max(...rates));
  const wide = Math.min(24, (width - left - right) / steps.length);
  const x = (index) => left + wide * index;
  const y = (share) => top + (height - top - bottom) * (1 - share);
  const mean = all.reduce((total, step) => total + step.tokens, 0) / all.length;
  const said = `${all.length} steps, ${mean.toFixed(1)} tokens per step, now ${Math.round(rates.at(-1))} tokens per second`;
  const root = svg("svg", { width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said });
  for (const share of [0, 0.5, 1]) {
    svg("line", { class: "grid", x1: left, x2: width - right, y1: y(share), y2: y(share) }, root);
    const tokens = tokensMax * share;
    if (Number.isInteger(tokens)) svg("text", { class: "axis", x: left - 6, y: y(share) + 4, "text-anchor": "end" }, root, tokens);
    svg("text", { class: "axis", x: width - right + 6, y: y(share) + 4 }, root, Math.round(rateMax * share));
  }
  steps.forEach((step, index) => {
    const kept = step.path.length;
    const bar = (kind, from, to) => {
      const box = { class: `point ${kind}`, x: x(index) + 1, y: y(to / tokensMax), width: Math.max(wide - 2, 1), height: y(from / tokensMax) - y(to / tokensMax) };
      if (to > from) svg("rect", box, root);
    };
    bar("kept", 0, kept);
    bar("own", kept, step.tokens);
  });
  const points = rates.map((rate, index) => `${(x(index) + wide / 2).toFixed(1)},${y(rate / rateMax).toFixed(1)}`);
  svg("polyline", { class: "speed", points: points.join(" ") }, root);
  svg("text", { class: "axis", x: left, y: height - 5 }, root, `step ${all.length - steps.length + 1}`);
  svg("text", { class: "axis", x: Math.max(x(steps.length), left + 100), y: height - 5, "text-anchor": "end" }, root, `step ${all.length}`);
  parent.replaceChildren(root);
}
