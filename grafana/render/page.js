// Draws a dashboard from its own JSON and the answers of its queries: the parts of Grafana that our panels use.
"use strict";

const CELL = 30, GAP = 8, WIDTH = 1600;
const COLORS = {
  green: "#56a64b", orange: "#ff9830", red: "#e02f44", blue: "#3274d9", purple: "#8f3bb8", text: "#24292e", transparent: "transparent",
};
const PALETTE = [
  "#56a64b", "#e0b400", "#3274d9", "#ff780a", "#e02f44", "#8f3bb8", "#1f9e9e", "#7f5a2f", "#5a6b7b", "#c45ab3",
];
const findings = [];
let DRAWN, main;

function element(parent, tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
}

// Units as Grafana writes them.
function digits(value, decimals) {
  if (decimals !== undefined) return value.toFixed(decimals);
  const whole = Math.floor(Math.log10(Math.abs(value) || 1)) + 1;
  return String(Number(value.toFixed(Math.max(0, Math.min(20, 3 - whole)))));
}

function scaled(value, decimals, steps) {
  let [size, suffix] = steps[0];
  for (const [from, name] of steps) if (Math.abs(value) >= from) [size, suffix] = [from, name];
  return digits(value / (size || 1), decimals) + suffix;
}

const SHORT = [[0, ""], [1e3, " K"], [1e6, " Mil"], [1e9, " Bil"], [1e12, " Tri"]];
const TIME = [[1e-6, " µs"], [1e-3, " ms"], [1, " s"], [60, " mins"], [3600, " hours"], [86400, " days"]];
const UNITS = {
  none: (value, decimals) => digits(value, decimals),
  short: (value, decimals) => scaled(value, decimals, SHORT),
  percentunit: (value, decimals) => digits(value * 100, decimals) + "%",
  s: (value, decimals) => value === 0 ? "0 s" : scaled(value, decimals, TIME),
  currencyUSD: (value, decimals) => "$" + scaled(value, decimals, [[0, ""], [1e3, "K"], [1e6, "M"]]),
  reqps: (value, decimals) => scaled(value, decimals, [[0, " req/s"], [1e3, "K req/s"]]),
  bytes: (value, decimals) =>
    scaled(value, decimals, [[0, " B"], [2 ** 10, " KiB"], [2 ** 20, " MiB"], [2 ** 30, " GiB"], [2 ** 40, " TiB"]]),
};

function formatted(value, config) {
  if (!(config.unit in UNITS)) findings.push(`no unit ${config.unit}`);
  return UNITS[config.unit](value, config.decimals);
}

function colorOf(value, thresholds) {
  let found = thresholds.steps[0].color;
  for (const step of thresholds.steps) if (step.value !== null && value >= step.value) found = step.color;
  return COLORS[found];
}

// A series' or a column's settings: the defaults under the overrides of its name.
function configOf(panel, name) {
  const found = { ...panel.fieldConfig.defaults };
  for (const override of panel.fieldConfig.overrides)
    if (override.matcher.options === name) for (const one of override.properties) found[one.id] = one.value;
  return found;
}

function legend(format, labels) {
  return format ? format.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? "").trim() : JSON.stringify(labels);
}

function box(panel) {
  const { x, y, w, h } = panel.gridPos;
  const column = (WIDTH - 2 * GAP + GAP) / 24;
  const made = element(main, "div", panel.type === "row" ? "row" : "panel");
  made.style.left = `${GAP + x * column}px`;
  made.style.top = `${y * (CELL + GAP)}px`;
  made.style.width = `${w * column - GAP}px`;
  made.style.height = `${h * (CELL + GAP) - GAP}px`;
  return made;
}

function empty(parent, panel, height) {
  const config = panel.fieldConfig.defaults;
  element(parent, "div", "empty", config.noValue || "No data").style.height = `${height}px`;
}

function drawStats(parent, panel, answers, height) {
  const found = answers.flatMap((series, query) =>
    series.map((one) => ({ name: legend(panel.targets[query].legendFormat, one.metric), value: Number(one.value[1]) })));
  if (!found.length) return empty(parent, panel, height);
  const stats = element(parent, "div", "stats");
  stats.style.height = `${height}px`;
  for (const { name, value } of found) {
    const config = configOf(panel, name);
    const stat = element(stats, "div", "stat");
    const color = config.color.fixedColor ? COLORS[config.color.fixedColor] : colorOf(value, config.thresholds);
    const filled = panel.options.colorMode === "background";
    if (filled) stat.style.background = color;
    stat.style.color = filled ? "#fff" : panel.options.colorMode === "none" ? COLORS.text : color;
    const text = element(stat, "b", "", formatted(value, config));
    if (panel.options.textMode === "value_and_name") element(stat, "small", "", name);
    for (let size = 42; size >= 14; size -= 2) {
      text.style.fontSize = `${size}px`;
      if (text.scrollWidth <= stat.clientWidth - 8 && text.clientHeight <= height - 24) break;
    }
    if (text.scrollWidth > stat.clientWidth) findings.push(`${panel.title}: ${text.textContent} does not fit`);
    if (stat.scrollHeight > stat.clientHeight) findings.push(`${panel.title}: ${name} does not fit`);
  }
}

// Opaque, since the lower of two stacked series covers the upper one's fill.
function pale(color) {
  const parts = color.match(/\w\w/g).map((part) => Math.round(parseInt(part, 16) * 0.45 + 255 * 0.55));
  return `rgb(${parts.join()})`;
}

function aligned(series) {
  const times = [];
  for (let at = DRAWN.start; at <= DRAWN.end; at += DRAWN.step) times.push(at);
  const place = new Map(times.map((at, index) => [at, index]));
  const columns = series.map((one) => {
    const column = new Array(times.length).fill(null);
    for (const [at, value] of one.values) column[place.get(at)] = Number(value);
    return column;
  });
  return [times, ...columns];
}

function stacked(data) {
  const sums = new Array(data[0].length).fill(0);
  return [data[0], ...data.slice(1).map((column) => column.map((value, at) => {
    if (value === null) return null;
    sums[at] += value;
    return sums[at];
  }))];
}

function drawChart(parent, panel, answers, height) {
  const found = answers.flatMap((series, query) =>
    series.map((one) => ({ ...one, name: legend(panel.targets[query].legendFormat, one.metric) })));
  if (!found.length) return empty(parent, panel, height);
  const config = panel.fieldConfig.defaults, custom = config.custom;
  const names = found.map((one) => one.name);
  const colors = names.map((name, index) => COLORS[configOf(panel, name).color.fixedColor] ?? PALETTE[index % PALETTE.length]);
  const plot = element(parent, "div");
  const labels = element(parent, "div", "legend");
  names.forEach((name, index) => {
    const label = element(labels, "span");
    element(label, "i").style.background = colors[index];
    label.append(name);
  });
  if (labels.scrollHeight > labels.clientHeight + 1) findings.push(`${panel.title}: legend is cut`);
  const raw = aligned(found);
  const isStacked = custom.stacking.mode === "normal";
  const data = isStacked ? stacked(raw) : raw;
  const steps = custom.thresholdsStyle.mode === "line" ? config.thresholds.steps.filter((one) => one.value !== null) : [];
  const highest = Math.max(...data.slice(1).flat().filter((value) => value !== null));
  const top = config.max ?? (highest > 0 ? highest * 1.1 : 1);
  const lowest = Math.min(0, ...data.slice(1).flat().filter((value) => value !== null));
  const range = [config.min ?? lowest * 1.1, top];
  const write = (values) => values.map((value) => formatted(value, config));
  const order = names.map((_, index) => index);
  if (isStacked) order.reverse();
  new uPlot({
    width: parent.clientWidth - 16,
    height: height - labels.offsetHeight,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true }, y: { range } },
    axes: [
      { size: 28, font: "11px DejaVu Sans", space: 56, incrs: [60, 300, 600, 1800, 3600, 10800, 86400], values: (_, times) => times.map((at) => new Date(at * 1000).toISOString().slice(11, 16)) },
      { size: axisSize, font: "11px DejaVu Sans", values: (_, values) => checkedAxis(panel, write(values)), incrs: config.decimals === 0 ? [1, 2, 5, 10, 20, 50, 100, 200, 500] : undefined },
    ],
    series: [{}, ...order.map((index) => ({
      stroke: colors[index],
      width: 1.5,
      fill: isStacked ? pale(colors[index]) : undefined,
      spanGaps: custom.spanNulls,
      points: { show: false },
    }))],
    hooks: { draw: [(chart) => steps.forEach((step) => drawThreshold(chart, step, range))] },
  }, [data[0], ...order.map((index) => data[index + 1])], plot);
}

function axisSize(chart, labels) {
  if (!labels?.length) return 40;
  const context = document.createElement("canvas").getContext("2d");
  context.font = "11px DejaVu Sans";
  return 20 + Math.max(...labels.map((label) => context.measureText(label).width));
}

function checkedAxis(panel, labels) {
  if (new Set(labels).size !== labels.length) findings.push(`${panel.title}: the axis repeats ${labels}`);
  return labels;
}

function drawThreshold(chart, step, range) {
  if (step.value > range[1]) return;
  const y = chart.valToPos(step.value, "y", true), { left, width } = chart.bbox, context = chart.ctx;
  context.save();
  context.strokeStyle = COLORS[step.color];
  context.setLineDash([8, 6]);
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(left + width, y);
  context.stroke();
  context.restore();
}

// The transformation "merge": one row for each set of labels; then "organize": columns by their names.
function merged(panel, answers) {
  const rows = new Map();
  const labels = new Set();
  answers.forEach((series, query) => {
    for (const one of series) {
      Object.keys(one.metric).forEach((label) => labels.add(label));
      const key = JSON.stringify(Object.entries(one.metric).sort());
      const row = rows.get(key) ?? { ...one.metric };
      row[panel.targets[query].legendFormat] = Number(one.value[1]);
      rows.set(key, row);
    }
  });
  return { labels: [...labels].sort(), rows: [...rows.values()] };
}

function drawTable(parent, panel, answers, height) {
  const { labels, rows } = merged(panel, answers);
  if (!rows.length) return empty(parent, panel, height);
  const names = panel.targets.map((target) => target.legendFormat);
  const by = panel.options.sortBy.map((one) => one.displayName);
  rows.sort((one, other) => {
    const name = by.find((each) => one[each] !== other[each]);
    return name ? (other[name] ?? -1) - (one[name] ?? -1) : 0;
  });
  const frame = element(parent, "div", "frame");
  frame.style.height = `${height}px`;
  frame.style.overflow = "hidden";
  const table = element(frame, "table");
  const head = element(table, "tr");
  labels.forEach((label) => element(head, "th", "", label));
  names.forEach((name) => element(head, "th", "number", name));
  for (const row of rows) {
    const line = element(table, "tr");
    labels.forEach((label) => element(line, "td", "", row[label] ?? ""));
    for (const name of names) {
      const config = configOf(panel, name), value = row[name];
      const mapping = config.mappings?.[0].options[String(value)];
      const cell = element(line, "td", "number", value === undefined ? "" : mapping?.text ?? formatted(value, config));
      if (value === undefined || !config["custom.cellOptions"]) continue;
      const color = mapping ? COLORS[mapping.color] : colorOf(value, config.thresholds);
      if (color !== "transparent") Object.assign(cell.style, { background: color, color: "#fff" });
    }
  }
  if (table.scrollWidth > frame.clientWidth) findings.push(`${panel.title}: columns do not fit`);
}

const DRAW = { stat: drawStats, timeseries: drawChart, table: drawTable };

function drawPanel(panel) {
  const parent = box(panel);
  if (panel.type === "row") {
    element(parent, "span", "", `${panel.collapsed ? "▸" : "▾"} ${panel.title}`);
    return;
  }
  const title = element(parent, "div", "title", panel.title);
  if (title.scrollWidth > title.clientWidth) findings.push(`${panel.title}: title is cut`);
  DRAW[panel.type](parent, panel, DRAWN.answers[panel.id], parent.clientHeight - 30);
  if (/NaN|Infinity|undefined|{{|\$\{/.test(parent.textContent)) findings.push(`${panel.title}: ${parent.textContent}`);
}

function overlaps() {
  const boxes = [...main.querySelectorAll(".panel, .row")].map((one) => [one, one.getBoundingClientRect()]);
  boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
      findings.push(`${one.textContent.slice(0, 40)} overlaps ${other.textContent.slice(0, 40)}`);
    if (a.right > WIDTH) findings.push(`${one.textContent.slice(0, 40)} leaves the page`);
  }));
}

function drawDashboard(drawn) {
  DRAWN = drawn;
  const header = element(document.body, "header");
  element(header, "h1", "", drawn.dashboard.title);
  for (const [name, value] of Object.entries(drawn.variables)) element(header, "span", "", `${name}: ${value}`);
  main = element(document.body, "main");
  main.style.height = `${Math.max(...drawn.dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * (CELL + GAP)}px`;
  drawn.dashboard.panels.forEach(drawPanel);
  overlaps();
}

ALL_DRAWN.forEach(drawDashboard);
element(document.body, "script", "findings", JSON.stringify(findings)).type = "application/json";
