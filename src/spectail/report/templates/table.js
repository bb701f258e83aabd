// Several seeds of a method: per class the mean of their accuracies.
function meanOf(group) {
  const seeds = group.runs.map((place) => report.runs[place].accuracy), mean = (label) => seeds.reduce((sum, one) => sum + one[label], 0) / seeds.length;
  const accuracy = report.classes.map((_, label) => (seeds[0][label] === null ? null : mean(label)));
  return { name: seeds.length > 1 ? `${group.name}, mean of ${seeds.length} seeds` : group.name, accuracy };
}

// All classes: sort by any column, filter by name and group, a page at a time.
function classTable(host) {
  const runs = report.groups ? report.groups.map(meanOf) : report.runs, one = runs.length === 1 && !report.groups, first = report.runs[0];
  const number = (value, digits = 1) => (value === null ? "n/a" : fixed(value, digits));
  // words are set left and sort from the start of the alphabet, numbers right and from the largest
  const columns = [{ title: "class", words: true, of: (label) => report.classes[label], show: named }];
  runs.forEach((run) => columns.push({
    title: one ? "right, %" : `${run.name}: right, %`, of: (label) => run.accuracy[label], show: (label) => number(run.accuracy[label]),
  }));
  const gap = (label) => (runs[0].accuracy[label] === null || runs[1].accuracy[label] === null ? null : runs[1].accuracy[label] - runs[0].accuracy[label]);
  const interval = (label) => (first.low[label] === null ? "n/a" : `${number(first.low[label], 0)} to ${number(first.high[label], 0)}`);
  if (one) columns.push({ title: "95 % interval", of: (label) => first.low[label], show: interval });
  if (runs.length === 2) columns.push({ title: "difference", of: gap, show: (label) => (gap(label) > 0 ? "+" : "") + number(gap(label)) });
  if (first.group) columns.push({ title: "group", words: true, of: (label) => GROUPS.indexOf(first.group[label]), show: (label) => make("span", { class: `tag ${first.group[label]}` }, first.group[label]) });
  if (first.train) columns.push({ title: "training images", of: (label) => first.train[label], show: (label) => whole(first.train[label]) });
  columns.push({ title: "test images", of: (label) => first.test[label], show: (label) => whole(first.test[label]) });
  if (one) columns.push({ title: "precision, %", of: (label) => first.precision[label], show: (label) => number(first.precision[label]) });
  if (one) columns.push({ title: "mistakes", of: wrong, show: mistakes });
  if (one) columns.push({ title: "most often taken for", left: true, of: (label) => first.taken[label]?.[1] ?? 0, show: taken });

  function wrong(label) { return first.test[label] - Math.round((first.accuracy[label] ?? 0) * first.test[label] / 100); }

  // All mistakes of a class by name, in a row of their own below it.
  function mistakes(label) {
    if (!wrong(label)) return "0";
    const button = make("button", { type: "button", "aria-expanded": "false", "aria-label": `${wrong(label)} mistakes of ${report.classes[label]}` }, whole(wrong(label)));
    button.addEventListener("click", async () => {
      const row = button.closest("tr"), open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      if (open) { row.nextElementSibling.remove(); return; }
      const list = make("ul", { class: "mistakes" }), below = make("tr", {}, make("td", { colspan: columns.length }, list));
      row.after(below);
      for (const cells of rowsOf(await unpacked("mistakes.csv"))) {
        if (Number(cells[3]) !== label || cells.length < 8) continue;
        const sure = cells[7] ? ` (${Number(cells[7]).toFixed(0)} % sure)` : "";
        list.append(make("li", {}, make("bdi", { class: "file" }, cells[2]), " taken for ", named(Number(cells[4])), sure));
      }
    });
    return button;
  }

  function taken(label) {
    const most = first.taken[label];
    return most ? make("span", {}, named(most[0]), ` (${(100 * most[1] / first.test[label]).toFixed(0)} %)`) : "–";
  }

  const body = host.querySelector("tbody"), head = host.querySelector("thead tr"), count = host.querySelector(".shown");
  const search = host.querySelector("input"), before = host.querySelector('[data-move="-1"]'), after = host.querySelector('[data-move="1"]');
  const PER_PAGE = 25;
  const state = { by: 1, up: true, page: 0, group: "all" };

  columns.forEach((column, place) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      state.up = state.by === place ? !state.up : Boolean(column.words);
      state.by = place;
      state.page = 0;
      fill();
    });
    head.append(make("th", { scope: "col", class: column.words || column.left ? "" : "n" }, button));
  });

  function chosen() {
    const words = search.value.trim().toLocaleLowerCase();
    const labels = report.classes.map((_, label) => label).filter((label) =>
      (state.group === "all" || first.group[label] === state.group) && (!words || report.classes[label].toLocaleLowerCase().includes(words)));
    const { of } = columns[state.by], sign = state.up ? 1 : -1;
    return labels.sort((a, b) => {
      const x = of(a), y = of(b);
      if (x === null || y === null) return (x === null) - (y === null) || a - b; // what is not known comes last
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
    });
  }

  function fill() {
    const labels = chosen(), pages = Math.max(1, Math.ceil(labels.length / PER_PAGE));
    state.page = Math.min(state.page, pages - 1);
    [...head.children].forEach((cell, place) => {
      if (place === state.by) cell.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
    body.replaceChildren(...labels.slice(state.page * PER_PAGE, (state.page + 1) * PER_PAGE).map((label) =>
      make("tr", {}, ...columns.map((column, place) => make("td", { class: place ? head.children[place].className : "name" }, column.show(label))))));
    const from = labels.length ? state.page * PER_PAGE + 1 : 0, to = Math.min((state.page + 1) * PER_PAGE, labels.length);
    count.textContent = `${whole(from)} to ${whole(to)} of ${whole(labels.length)} classes`;
    before.disabled = state.page === 0;
    after.disabled = state.page >= pages - 1;
  }

  search.addEventListener("input", () => { state.page = 0; fill(); });
  for (const button of [before, after]) button.addEventListener("click", () => { state.page += Number(button.dataset.move); fill(); });
  const groups = host.querySelectorAll("[data-group]");
  groups.forEach((button) => button.addEventListener("click", () => {
    state.group = button.dataset.group;
    state.page = 0;
    groups.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    fill();
  }));
  fill();
}

// The lines of a CSV file below its header, as lists of cells.
function* rowsOf(text) {
  let cells = [], place = text.indexOf("\n") + 1;
  for (const found of text.slice(place).matchAll(/("(?:[^"]|"")*"|[^,\n]*)(,|\n)/g)) {
    cells.push(found[1].startsWith('"') ? found[1].slice(1, -1).replaceAll('""', '"') : found[1]);
    if (found[2] === "\n") { yield cells; cells = []; }
  }
}

document.querySelectorAll("#classes").forEach(classTable);
