// Accuracy of every class against its number of training images; the pointer names the nearest class.
function scatter(host) {
  const run = report.runs[Number(host.dataset.run)];
  const known = run.accuracy.map((_, label) => label).filter((label) => run.accuracy[label] !== null);
  const counted = run.train !== null;
  const ranked = [...known].sort((a, b) => run.accuracy[b] - run.accuracy[a]);
  const rank = new Map(ranked.map((label, place) => [label, place + 1]));
  const value = (label) => (counted ? Math.max(run.train[label], 0.8) : rank.get(label));
  const groupOf = (label) => (run.group ? run.group[label] : "head");
  const tip = make("div", { class: "tip", hidden: "" });
  host.append(tip);
  let points = [];

  function draw() {
    host.querySelector("svg")?.remove();
    const width = host.clientWidth, height = Math.round(Math.max(250, Math.min(400, width * 0.5)));
    const left = 44, right = 14, top = 12, bottom = 42;
    const values = known.map(value);
    const low = Math.min(...values), high = Math.max(...values);
    const span = counted ? Math.log(high / low) || 1 : high - low || 1;
    const x = (v) => left + 10 + (width - left - right - 20) * (counted ? Math.log(v / low) : v - low) / span;
    const y = (v) => top + (height - top - bottom) * (1 - v / 100);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": host.dataset.alt, tabindex: "0" });
    for (const tick of [0, 25, 50, 75, 100]) {
      svg.append(shape("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), style: "stroke: var(--line)" }));
      svg.append(shape("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, `${tick} %`));
    }
    for (const tick of counted ? decades(low, high) : even(low, high)) {
      svg.append(shape("line", { x1: x(tick), x2: x(tick), y1: height - bottom, y2: height - bottom + 5, style: "stroke: var(--muted)" }));
      svg.append(shape("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, whole(tick)));
    }
    const title = counted ? "training images of the class (logarithmic)" : "classes, best first";
    svg.append(shape("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, title));
    points = known.map((label) => ({ label, x: x(value(label)), y: y(run.accuracy[label]) }));
    const size = known.length > 2000 ? 1.8 : known.length > 300 ? 2.6 : 4;
    for (const group of GROUPS) {
      const mine = points.filter((point) => groupOf(point.label) === group);
      if (!mine.length) continue;
      const path = mine.map((point) => marker(group, point.x, point.y, size)).join("");
      svg.append(shape("path", { d: path, style: `fill: var(${TONES[group]}); opacity: ${known.length > 300 ? 0.55 : 0.72}` }));
    }
    for (const group of run.group ? GROUPS : []) means(svg, points.filter((point) => groupOf(point.label) === group), group, y);
    svg.append(shape("path", { class: "mark", d: "", style: "fill: none; stroke: var(--ink); stroke-width: 2" }));
    host.prepend(svg);
    svg.addEventListener("pointermove", (event) => show(nearest(event), event));
    svg.addEventListener("pointerleave", () => show(null));
    svg.addEventListener("blur", () => show(null));
    svg.addEventListener("keydown", step);
  }

  // the mean of a group, drawn where its classes lie
  function means(svg, mine, group, y) {
    if (!mine.length) return;
    const mean = mine.reduce((sum, point) => sum + run.accuracy[point.label], 0) / mine.length;
    const from = Math.min(...mine.map((point) => point.x)) - 5, to = Math.max(...mine.map((point) => point.x)) + 5;
    svg.append(shape("line", { x1: from, x2: to, y1: y(mean), y2: y(mean), style: "stroke: var(--panel); stroke-width: 5; opacity: .8" }));
    svg.append(shape("line", { x1: from, x2: to, y1: y(mean), y2: y(mean), style: `stroke: var(${TONES[group]}); stroke-width: 2.5` }));
  }

  function nearest(event) {
    const box = host.querySelector("svg").getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, reach = 28 * 28;
    for (const point of points) {
      const distance = (point.x - px) ** 2 + (point.y - py) ** 2;
      if (distance < reach) [best, reach] = [point, distance];
    }
    return best;
  }

  let chosen = -1; // with the keyboard, classes are visited from left to right
  function step(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const order = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
    chosen = Math.max(0, Math.min(order.length - 1, chosen + move));
    show(order[chosen]);
  }

  function show(point) {
    tip.hidden = point === null;
    host.querySelector(".mark").setAttribute("d", point ? marker("head", point.x, point.y, 7) : "");
    if (!point) return;
    const label = point.label;
    tip.replaceChildren(make("b", {}, named(label)), `${percent(run.accuracy[label])} right (95 % interval ${run.low[label].toFixed(0)} to ${run.high[label].toFixed(0)})`);
    if (counted) tip.append(make("br"), `${whole(run.train[label])} training, ${whole(run.test[label])} test images`);
    tip.style.left = `${Math.max(0, Math.min(point.x + 12, host.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${point.y > tip.offsetHeight + 14 ? point.y - tip.offsetHeight - 12 : point.y + 14}px`;
  }

  let last = 0;
  new ResizeObserver(() => {
    if (host.clientWidth && host.clientWidth !== last) { last = host.clientWidth; draw(); }
  }).observe(host);
}

function decades(low, high) {
  const ticks = [];
  for (let power = 0; power < 8; power++) for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** power);
  const inside = ticks.filter((tick) => tick >= low * 0.99 && tick <= high * 1.01);
  return inside.length ? inside : [...new Set([low, high])].map(Math.round);
}

function even(low, high) {
  return [...new Set([low, Math.round((low + high) / 2), high])];
}

document.querySelectorAll(".scatter").forEach(scatter);
