// The whole confusion matrix on a canvas: columns are true classes, rows what they were taken for.
function matrix(host) {
  const canvas = host.querySelector("canvas"), pen = canvas.getContext("2d"), readout = host.querySelector(".readout");
  const control = (name) => host.querySelector(`[data-control="${name}"]`);
  const size = report.classes.length;
  const view = { scale: 1, x: 0, y: 0 }; // x, y: share of the matrix that is hidden on the left and on top
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

  function draw() {
    const ratio = window.devicePixelRatio || 1, side = canvas.clientWidth;
    if (!side) return;
    canvas.width = canvas.height = Math.round(side * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colour("--panel");
    pen.fillRect(0, 0, side, side);
    const cell = side * view.scale / size;
    const left = -view.x * side * view.scale, top = -view.y * side * view.scale;
    const right = ramp("--right-rgb", 0.08), wrong = ramp("--wrong-rgb", 0.14);
    const drawn = Math.max(cell - (cell > 8 ? 1 : 0), 1);
    if (cell > 8) grid(cell, left, top, side);
    for (const entry of cells) {
      const x = left + place[entry.truth] * cell, y = top + place[entry.predicted] * cell;
      if (x > side || y > side || x + drawn < 0 || y + drawn < 0) continue;
      const same = entry.truth === entry.predicted;
      pen.fillStyle = (same ? right : wrong)[Math.round(63 * (same ? entry.share : Math.sqrt(entry.share)))];
      pen.fillRect(x, y, drawn, drawn);
      if (cell > 26) number(entry, x, y, cell);
    }
    if (cell > 12) labels(cell, left, top, side);
    canvas.classList.toggle("moved", view.scale > 1);
    canvas.dataset.zoom = view.scale.toFixed(3);
    canvas.dataset.origin = `${view.x.toFixed(4)},${view.y.toFixed(4)}`;
    control("out").disabled = control("whole").disabled = view.scale <= 1;
  }

  function ramp(name, floor) {
    const rgb = colour(name);
    return Array.from({ length: 64 }, (_, level) => `rgba(${rgb}, ${(floor + (1 - floor) * level / 63).toFixed(3)})`);
  }

  function grid(cell, left, top, side) {
    pen.fillStyle = colour("--soft");
    const first = Math.max(0, Math.floor(-left / cell)), row = Math.max(0, Math.floor(-top / cell));
    for (let i = first; i < size && left + i * cell < side; i++)
      for (let j = row; j < size && top + j * cell < side; j++) pen.fillRect(left + i * cell, top + j * cell, cell - 1, cell - 1);
  }

  function number(entry, x, y, cell) {
    pen.fillStyle = colour(entry.share > 0.45 ? "--panel" : "--ink");
    pen.font = `${Math.min(13, cell * 0.36)}px system-ui, sans-serif`;
    pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.fillText((100 * entry.share).toFixed(0), x + cell / 2, y + cell / 2);
  }

  // names along the edges once there is room for them
  function labels(cell, left, top, side) {
    const panel = colour("--panel"), ink = colour("--ink");
    pen.font = `${Math.min(13, cell * 0.8)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    const text = (label) => { const name = report.classes[label]; return name.length > 16 ? `${name.slice(0, 15)}…` : name; };
    const show = (label) => {
      const width = pen.measureText(text(label)).width + 8;
      pen.globalAlpha = 0.86; pen.fillStyle = panel; pen.fillRect(0, -cell * 0.45, width, cell * 0.9);
      pen.globalAlpha = 1; pen.fillStyle = ink; pen.textAlign = "left"; pen.fillText(text(label), 4, 0);
    };
    order.forEach((label, position) => {
      const y = top + (position + 0.5) * cell, x = left + (position + 0.5) * cell;
      if (y > 0 && y < side) { pen.save(); pen.translate(0, y); show(label); pen.restore(); }
      if (x > 0 && x < side) { pen.save(); pen.translate(x, 0); pen.rotate(Math.PI / 2); show(label); pen.restore(); }
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
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  function read(event) {
    const [cx, cy] = inside(event);
    const column = Math.floor((view.x + cx / view.scale) * size), row = Math.floor((view.y + cy / view.scale) * size);
    if (column < 0 || row < 0 || column >= size || row >= size) return;
    // a cell of a large matrix is smaller than a pixel: take the strongest one under the pointer
    const reach = Math.floor(2 * size / (canvas.clientWidth * view.scale));
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
    fingers.set(event.pointerId, inside(event));
    canvas.setPointerCapture(event.pointerId);
    if (fingers.size === 2) spread = gap();
    read(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId), now = inside(event);
    if (before) {
      fingers.set(event.pointerId, now);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()], wider = gap();
        if (spread > 0 && wider > 0) zoom(wider / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        spread = wider;
      } else if (view.scale > 1) {
        view.x -= (now[0] - before[0]) / view.scale;
        view.y -= (now[1] - before[1]) / view.scale;
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
