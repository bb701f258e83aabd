// The whole confusion matrix on a canvas: columns are true classes, rows what they were taken for.
function matrix(host) {
  const canvas = host.querySelector("canvas"), pen = canvas.getContext("2d"), readout = host.querySelector(".readout");
  const control = (name) => host.querySelector(`[data-control="${name}"]`);
  const size = report.classes.length;
  const view = { scale: 1, x: 0, y: 0 }; // x, y: share of the matrix that is hidden on the left and on top
  const LEGIBLE = 9; // pixels
  let run, cells, order, place, lookup;

  function unpack() {
    run = report.runs[Number(control("run")?.value ?? host.dataset.first)];
    const { steps, counts } = run.confusion;
    cells = [];
    let at = 0;
    for (let i = 0; i < steps.length; i++) {
      at += steps[i];
      const predicted = Math.floor(at / size), truth = at % size;
      cells.push({ predicted, truth, count: counts[i], share: counts[i] / run.test[truth] });
    }
    cells.sort((a, b) => a.share - b.share); // the strongest are drawn last, on top
    lookup = new Map(cells.map((cell) => [cell.predicted * size + cell.truth, cell]));
    arrange();
  }

  function arrange() {
    order = run.orders[control("order").value] ?? run.orders.label;
    place = new Int32Array(size);
    order.forEach((label, position) => { place[label] = position; });
    draw();
  }

  // the matrix lies right of and below a margin, wide enough for names once cells are large enough for them
  function margin() {
    const side = canvas.clientWidth, wide = Math.round(Math.min(96, side * 0.18));
    return (side - wide) * view.scale / size > LEGIBLE ? wide : 24;
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, side = canvas.clientWidth, edge = margin(), inner = side - edge;
    if (!side) return;
    canvas.width = canvas.height = Math.round(side * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colour("--panel");
    pen.fillRect(0, 0, side, side);
    const cell = inner * view.scale / size;
    const left = edge - view.x * inner * view.scale, top = edge - view.y * inner * view.scale;
    pen.save();
    pen.beginPath();
    pen.rect(edge, edge, inner, inner);
    pen.clip();
    fill(cell, left, top, edge, side);
    pen.restore();
    bands(cell, left, top, edge, side);
    if (edge > 24) labels(cell, left, top, edge, side);
    else titles(edge, side);
    canvas.classList.toggle("moved", view.scale > 1);
    canvas.dataset.zoom = view.scale.toFixed(3);
    canvas.dataset.origin = `${view.x.toFixed(4)},${view.y.toFixed(4)}`;
    canvas.dataset.margin = edge;
    control("out").disabled = control("whole").disabled = view.scale <= 1;
  }

  function fill(cell, left, top, edge, side) {
    const right = ramp("--right-rgb", 0.08), wrong = ramp("--wrong-rgb", 0.14);
    const drawn = Math.max(cell - (cell > 8 ? 1 : 0), 1);
    pen.fillStyle = colour("--soft");
    if (cell > 8) grid(cell, left, top, edge, side);
    else pen.fillRect(edge, edge, side - edge, side - edge);
    for (const entry of cells) {
      const x = left + place[entry.truth] * cell, y = top + place[entry.predicted] * cell;
      if (x > side || y > side || x + drawn < edge || y + drawn < edge) continue;
      const same = entry.truth === entry.predicted;
      pen.fillStyle = (same ? right : wrong)[Math.round(63 * (same ? entry.share : Math.sqrt(entry.share)))];
      pen.fillRect(x, y, drawn, drawn);
      if (cell > 26) number(entry, x, y, cell);
    }
  }

  function ramp(name, floor) {
    const rgb = colour(name);
    return Array.from({ length: 64 }, (_, level) => `rgba(${rgb}, ${(floor + (1 - floor) * level / 63).toFixed(3)})`);
  }

  function grid(cell, left, top, edge, side) {
    const first = Math.max(0, Math.floor((edge - left) / cell)), row = Math.max(0, Math.floor((edge - top) / cell));
    for (let i = first; i < size && left + i * cell < side; i++)
      for (let j = row; j < size && top + j * cell < side; j++) pen.fillRect(left + i * cell, top + j * cell, cell - 1, cell - 1);
  }

  // a thin line in the colour of each class's group along both edges
  function bands(cell, left, top, edge, side) {
    if (!run.group) return;
    const tones = Object.fromEntries(GROUPS.map((group) => [group, colour(TONES[group])]));
    for (let from = 0, to = 0; from < size; from = to) {
      const group = run.group[order[from]];
      while (to < size && run.group[order[to]] === group) to += 1; // neighbours of a group share one line
      const x = Math.max(left + from * cell, edge), y = Math.max(top + from * cell, edge);
      pen.fillStyle = tones[group];
      pen.fillRect(x, edge - 4, Math.max(Math.min(left + to * cell, side) - x, 0), 3);
      pen.fillRect(edge - 4, y, 3, Math.max(Math.min(top + to * cell, side) - y, 0));
    }
  }

  function titles(edge, side) {
    pen.fillStyle = colour("--muted");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.fillText("true class \u2192", (edge + side) / 2, edge / 2 - 2);
    pen.save();
    pen.translate(edge / 2 - 2, (edge + side) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("\u2190 taken for", 0, 0);
    pen.restore();
  }

  function number(entry, x, y, cell) {
    pen.fillStyle = colour(entry.share > 0.45 ? "--panel" : "--ink");
    pen.font = `${Math.min(13, cell * 0.36)}px system-ui, sans-serif`;
    pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.fillText((100 * entry.share).toFixed(0), x + cell / 2, y + cell / 2);
  }

  // names along the edges once there is room for them
  function labels(cell, left, top, edge, side) {
    pen.fillStyle = colour("--ink");
    pen.font = `${Math.min(12, cell * 0.85)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    const short = (label) => {
      let name = [...report.classes[label].slice(0, 60)];
      const fits = () => pen.measureText(name.join("")).width <= edge - 12;
      if (fits()) return name.join("");
      while (name.length > 1 && !fits()) name = [...name.slice(0, -2), "\u2026"];
      return name.join("");
    };
    order.forEach((label, position) => {
      const x = left + (position + 0.5) * cell, y = top + (position + 0.5) * cell;
      if (y > edge && y < side) { pen.textAlign = "right"; pen.fillText(short(label), edge - 7, y); }
      if (x < edge || x > side) return;
      pen.save();
      pen.translate(x, edge - 7);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(short(label), 0, 0);
      pen.restore();
    });
  }

  function zoom(factor, cx = 0.5, cy = 0.5) {
    const scale = Math.max(1, Math.min(Math.max(size / 6, 1), view.scale * factor));
    view.x += cx / view.scale - cx / scale;
    view.y += cy / view.scale - cy / scale;
    view.scale = scale;
    settle();
  }

  function settle() {
    const most = 1 - 1 / view.scale;
    view.x = Math.max(0, Math.min(most, view.x));
    view.y = Math.max(0, Math.min(most, view.y));
    requestAnimationFrame(draw);
  }

  function inside(event) {
    const box = canvas.getBoundingClientRect(), edge = margin(), inner = box.width - edge;
    return [(event.clientX - box.left - edge) / inner, (event.clientY - box.top - edge) / inner];
  }

  function read(event) {
    const [cx, cy] = inside(event);
    if (cx < 0 || cy < 0) return;
    const column = Math.floor((view.x + cx / view.scale) * size), row = Math.floor((view.y + cy / view.scale) * size);
    if (column < 0 || row < 0 || column >= size || row >= size) return;
    // a cell of a large matrix is smaller than a pixel: take the strongest one under the pointer
    const reach = Math.floor(2 * size / ((canvas.clientWidth - margin()) * view.scale));
    let found = null;
    for (let i = column - reach; i <= column + reach; i++) for (let j = row - reach; j <= row + reach; j++) {
      const entry = i >= 0 && j >= 0 && i < size && j < size ? lookup.get(order[j] * size + order[i]) : undefined;
      if (entry && (!found || entry.share > found.share)) found = entry;
    }
    describe(found, order[column], order[row]);
  }

  function describe(found, truth, predicted) {
    if (found) [truth, predicted] = [found.truth, found.predicted];
    const count = found ? found.count : 0, total = run.test[truth];
    const share = total ? ` (${(100 * count / total).toFixed(1)} %)` : "";
    const of = ` of ${images(total)}${share}`;
    if (truth === predicted) readout.replaceChildren(make("b", {}, named(truth)), ` recognised: ${whole(count)}${of}.`);
    else readout.replaceChildren(make("b", {}, named(truth)), " taken for ", make("b", {}, named(predicted)), `: ${whole(count)}${of}.`);
  }

  const fingers = new Map();
  let spread = 0;
  const gap = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    canvas.setPointerCapture(event.pointerId);
    if (fingers.size === 2) spread = gap();
    read(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId), now = [event.clientX, event.clientY];
    if (before) {
      fingers.set(event.pointerId, now);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()], wider = gap();
        const middle = { clientX: (a[0] + b[0]) / 2, clientY: (a[1] + b[1]) / 2 };
        if (spread > 0 && wider > 0) zoom(wider / spread, ...inside(middle));
        spread = wider;
      } else if (view.scale > 1) {
        const inner = (canvas.clientWidth - margin()) * view.scale;
        view.x -= (now[0] - before[0]) / inner;
        view.y -= (now[1] - before[1]) / inner;
        settle();
      }
    }
    read(event);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("wheel", (event) => {
    const active = event.ctrlKey || event.metaKey || document.activeElement === canvas;
    if (!active || (view.scale <= 1 && event.deltaY > 0)) return; // the page scrolls on
    event.preventDefault();
    zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) * 0.004), ...inside(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move && view.scale > 1) { view.x += 0.15 * move[0] / view.scale; view.y += 0.15 * move[1] / view.scale; settle(); }
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") zoom(1e-9);
    else return;
    event.preventDefault();
  });
  control("in").addEventListener("click", () => zoom(1.6));
  control("out").addEventListener("click", () => zoom(1 / 1.6));
  control("whole").addEventListener("click", () => zoom(1e-9));
  control("order").addEventListener("change", arrange);
  control("run")?.addEventListener("change", unpack);
  unpack();
  onTheme(draw);
  new ResizeObserver(draw).observe(canvas);
}

document.querySelectorAll("#matrix").forEach(matrix);
