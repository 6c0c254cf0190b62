/** A chart of the last ten minutes: lines in an SVG, a dashed limit, gaps where nothing is known. */

import { written } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 100;
/** So much of the past is drawn. */
export const SECONDS = 600;
const COLOURS = ["one", "two", "three"];
/** A gap longer than so many steps is one, and no line is drawn over it. */
const MISSED_STEPS = 3;

function element(parent, name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

function path(svg, className) {
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("class", className);
  svg.append(made);
  return made;
}

/** Build one into a parent; the function returned draws it. */
export function chart(parent, title, { unit, series, limit, top }) {
  const figure = element(parent, "figure");
  const scale = element(figure, "span", "top");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  figure.append(svg);
  element(figure, "span", "", "10 min ago");
  element(figure, "span", "", "now");
  const legend = element(figure, "figcaption");
  const dashed = limit && path(svg, "limit");
  const dashedName = limit && element(legend, "span", "limit");
  const lines = series.map(([name, label], position) => {
    element(legend, "span", COLOURS[position], label);
    return { name, label, path: path(svg, COLOURS[position]) };
  });

  return (history, engine, now) => {
    const known = lines.flatMap(({ name }) => (history[name] ?? []).filter((value) => value !== null));
    const greatest = known.reduce((one, other) => Math.max(one, other), 0);
    const level = limit ? limit[1](engine) : null;
    const fits = level !== null && (greatest === 0 || level <= 4 * greatest);
    const height = top ?? (Math.max(greatest, fits ? level : 0) * 1.1 || 1);
    const y = (value) => (HEIGHT * (1 - Math.min(value / height, 1))).toFixed(1);
    for (const line of lines) line.path.setAttribute("d", drawn(history, line.name, now, y));
    if (limit) {
      dashed.setAttribute("d", fits ? `M0 ${y(level)}H${WIDTH}` : "");
      const above = level !== null && !fits ? ", above" : "";
      dashedName.textContent = level === null ? `${limit[0]} unknown` : `${limit[0]} ${written(level, unit)}${above}`;
    }
    scale.textContent = written(height, unit);
    svg.setAttribute("aria-label", `${title}: ${lines.map((line) => spoken(history, line, unit)).join("; ")}`);
  };
}

function drawn(history, name, now, y) {
  const times = history.unix_seconds ?? [];
  const values = history[name] ?? [];
  let text = "";
  let before = null;
  for (let position = 0; position < times.length; position += 1) {
    if (values[position] === null) {
      before = null;
      continue;
    }
    const x = (WIDTH * (1 - (now - times[position]) / SECONDS)).toFixed(1);
    const joined = before !== null && times[position] - before < MISSED_STEPS * history.step_seconds;
    // A point alone is a short stroke: a line of no length would not be seen.
    text += `${joined ? "L" : "M"}${x} ${y(values[position])}${joined ? "" : "h1"}`;
    before = times[position];
  }
  return text;
}

function spoken(history, { name, label }, unit) {
  const known = (history[name] ?? []).filter((value) => value !== null);
  if (known.length === 0) return `${label} unknown in the last ten minutes`;
  const least = known.reduce((one, other) => Math.min(one, other));
  const greatest = known.reduce((one, other) => Math.max(one, other));
  return `${label} from ${written(least, unit)} to ${written(greatest, unit)}, now ${written(known.at(-1), unit)}`;
}
