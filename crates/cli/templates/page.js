"use strict";
(() => {
  const taps = JSON.parse(document.getElementById("data").textContent);
  const panel = document.getElementById("tap");
  const cells = [...document.querySelectorAll("button.cell")];
  const NOT_FINITE = 9999;

  // Text is set as text: a tap's name is foreign, and never markup.
  const make = (name, attributes = {}, ...children) => {
    const svg = ["svg", "rect", "line", "text", "title"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const number = (value) => {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    return value === 0 ? "0" : size >= 1e-3 && size < 1e4 ? value.toFixed(4) : value.toExponential(1);
  };
  // A tenth of a decade is a quarter: two digits are more than it has.
  const level = (tenths) => tenths === null ? "0" : tenths === NOT_FINITE ? "not finite" : `about ${(10 ** (tenths / 10)).toPrecision(1)}`;

  // Bars of heights in tenths of decades, a line at what is allowed.
  const bars = (title, what, { each, count, tenths, worst, nmse }, allowed, differs, tokens) => {
    if (!tenths || tenths.length < 2) return null;
    const finite = tenths.filter((t) => t !== null && t !== NOT_FINITE);
    const limit = allowed > 0 ? 10 * Math.log10(allowed) : null;
    const all = limit === null ? finite : [...finite, limit];
    const low = Math.min(...all, 0) - 10, high = Math.max(...all, low + 20);
    const left = 44, width = 320, height = 90, step = (width - left) / tenths.length;
    const y = (t) => height - (height - 4) * (t - low) / (high - low);
    const name = (i) => {
      const [start, end] = tokens ? tokens[i] : [i * each, Math.min((i + 1) * each, count) - 1];
      return start === end ? `${what} ${start}` : `${what} ${start} to ${end}`;
    };
    const label = `${title}: the worst is ${name(worst)}, NMSE ${nmse ?? "not finite"}`;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    tenths.forEach((t, i) => {
      const top = t === null ? height - 1 : t === NOT_FINITE ? 0 : y(t);
      const high_class = t === NOT_FINITE || (differs && t !== null && limit !== null && t > limit) ? "bar high" : "bar";
      svg.append(make("rect", { class: high_class, x: (left + i * step).toFixed(1), y: top.toFixed(1), width: Math.max(step - 1, 0.7).toFixed(1), height: (height - top).toFixed(1) },
        make("title", {}, `${name(i)}: NMSE ${level(t)}`)));
    });
    if (limit !== null) svg.append(make("line", { class: "limit", x1: left, x2: width, y1: y(limit).toFixed(1), y2: y(limit).toFixed(1) }));
    const mark = (y, text) => make("text", { x: left - 4, y, "text-anchor": "end" }, text);
    const short = (value) => value >= 1e-3 && value < 1e4 ? String(Number(value.toPrecision(2))) : value.toExponential(1);
    svg.append(mark(12, short(10 ** (high / 10))), mark(height - 1, short(10 ** (low / 10))));
    const scale = limit === null ? "logarithmic" : "logarithmic; dotted: what is allowed of the whole tap";
    return make("figure", {}, make("figcaption", {}, `${label} (${scale})`), svg);
  };

  // How many differences are how large.
  const spread = (detail) => {
    const { counts, from, equal, not_finite } = detail;
    const label = `Differences: ${equal} values are equal` + (not_finite ? `, ${not_finite} are not finite` : "") +
      (counts.length ? `, the others from ${number(2 ** from)} to ${number(2 ** (from + counts.length))}` : "");
    if (!counts.length) return make("figure", {}, make("figcaption", {}, label));
    const width = 320, height = 90, most = Math.max(...counts), step = width / counts.length;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    counts.forEach((count, i) => {
      const tall = count ? Math.max((height - 4) * count / most, 1) : 0;
      svg.append(make("rect", { class: "bar", x: (i * step).toFixed(1), y: (height - tall).toFixed(1), width: Math.max(step - 1, 0.7).toFixed(1), height: tall.toFixed(1) },
        make("title", {}, `${number(2 ** (from + i))} to ${number(2 ** (from + i + 1))}: ${count}`)));
    });
    return make("figure", {}, make("figcaption", {}, label), svg);
  };

  // Probabilities of one side, in percent: the darker the more.
  const map = (side, maps) => {
    const [rows, columns] = maps.size, values = maps[side], label = `Probabilities of head ${maps.head}, ${side}: rows are queries, columns keys`;
    const svg = make("svg", { viewBox: `0 0 ${columns} ${rows}`, class: "square", role: "img", "aria-label": label });
    values.forEach((percent, i) => {
      const row = Math.floor(i / columns), column = i % columns;
      const opacity = percent === null ? 1 : Math.min(Math.max(percent, 0), 100) / 100;
      svg.append(make("rect", { class: percent === null ? "lost" : "sees", x: column, y: row, width: 1, height: 1, "fill-opacity": opacity.toFixed(2) },
        make("title", {}, `query at position ${maps.tokens[row]}, key ${column * maps.each[1]}: ${percent === null ? "not finite" : `${percent} %`}`)));
    });
    return make("figure", {}, make("figcaption", {}, label), svg);
  };

  const show = (at, scroll) => {
    const tap = taps[at];
    if (!tap) return;
    cells.forEach((cell) => cell.setAttribute("aria-pressed", String(Number(cell.dataset.at) === at)));
    panel.hidden = false;
    const heading = make("h2", { id: "tap-name" }, tap.when ? `${tap.tap}, ${tap.when}` : tap.tap);
    const list = make("dl", {}, ...tap.facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
    const charts = make("div", { class: "charts" });
    panel.replaceChildren(heading, list);
    const detail = tap.detail;
    if (detail) {
      const differs = tap.status === "diverged" || tap.status === "downstream";
      charts.append(...[bars("By position", "position", detail.positions, tap.allowed, differs, detail.tokens),
        bars("By head", "head", detail.heads, tap.allowed, differs), bars(`By ${detail.last}`, detail.last, detail.channels, tap.allowed, differs),
        spread(detail)].filter((chart) => chart));
      if (detail.maps) charts.append(map("reference", detail.maps), map("candidate", detail.maps));
      if (detail.worst.length) {
        const rows = detail.worst.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, text))));
        const head = make("tr", {}, ...["furthest apart at", "reference", "candidate"].map((text) => make("th", { scope: "col" }, text)));
        charts.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
      }
      panel.append(charts);
    } else if (tap.is_measured) {
      panel.append(make("p", {}, "Where in the tap the error is, is not told on this page."));
    }
    if (scroll) panel.scrollIntoView({ block: "nearest" });
  };

  // One cell is reached by the tabulator key, the others from it by the arrows.
  let current = cells.find((cell) => cell.classList.contains("first")) ?? cells[0];
  const enter = (cell) => {
    if (!cell) return;
    current.tabIndex = -1;
    current = cell;
    current.tabIndex = 0;
  };
  cells.forEach((cell) => { cell.tabIndex = -1; });
  if (current) current.tabIndex = 0;
  const beside = (cell, key) => {
    const item = cell.closest("td"), row = item.parentElement, index = [...row.children].indexOf(item);
    const in_row = (r) => r?.children[index]?.querySelector("button.cell");
    switch (key) {
      case "ArrowLeft": return item.previousElementSibling?.querySelector("button.cell");
      case "ArrowRight": return item.nextElementSibling?.querySelector("button.cell");
      case "ArrowUp": return in_row(row.previousElementSibling) ?? cells[cells.indexOf(cell) - 1];
      case "ArrowDown": return in_row(row.nextElementSibling) ?? cells[cells.indexOf(cell) + 1];
      case "Home": return row.querySelector("button.cell");
      case "End": return [...row.querySelectorAll("button.cell")].pop();
      default: return null;
    }
  };
  document.addEventListener("click", (event) => {
    const cell = event.target.closest?.("button.cell");
    if (!cell) return;
    enter(cell);
    show(Number(cell.dataset.at), true);
  });
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("button.cell");
    const next = cell && beside(cell, event.key);
    if (!next) return;
    event.preventDefault();
    enter(next);
    next.focus();
  });
  const first = cells.find((cell) => cell.classList.contains("first"));
  if (first) show(Number(first.dataset.at), false);
})();
