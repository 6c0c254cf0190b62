/** The page: asks the sidecar once a second, and writes what it says as text, never as markup. */

import { chart, SECONDS } from "./chart.js";
import { ago, written } from "./format.js";
import { PANELS, quantileName } from "./panels.js";

const EVERY_MILLISECONDS = 1000;
const PATIENCE_MILLISECONDS = 5000;
const HISTORY = "api/v1/history";
const SEVERITY = {
  lost: "severe", stalled: "severe", blind: "severe", "clients are leaving": "severe",
  queueing: "pressing", "batch pressure": "pressing", loading: "waiting", measuring: "waiting", asleep: "waiting", fine: "well",
};

const $ = (selector) => document.querySelector(selector);
const shown = { key: null, kind: null, history: { unix_seconds: [] }, answeredAt: null };

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A number, or why there is none. */
function putValue(element, engine, { metric, unit, of }) {
  const value = of(engine);
  element.dataset.metric = metric;
  if (value === null) delete element.dataset.value;
  else element.dataset.value = String(value);
  const text = value === null ? engine.unknown[metric] ?? (metric.startsWith("slo_") ? "not set" : "not known") : written(value, unit);
  element.className = value === null ? "why" : "";
  element.title = value === null ? text : "";
  put(element, text);
}

function build(panel) {
  const article = document.createElement("article");
  article.className = "panel";
  const title = article.appendChild(document.createElement("h3"));
  title.textContent = panel.title;
  const primary = article.appendChild(document.createElement("p"));
  primary.className = "primary";
  const number = primary.appendChild(document.createElement("strong"));
  const unit = primary.appendChild(document.createElement("small"));
  const facts = article.appendChild(document.createElement("dl"));
  facts.className = "facts";
  const values = panel.facts.map((fact) => {
    facts.appendChild(document.createElement("dt")).textContent = fact.label;
    return [facts.appendChild(document.createElement("dd")), fact];
  });
  const draw = chart(article, panel.title, panel.chart);
  $("#panels").append(article);
  return (engine, now) => {
    putValue(number, engine, panel.primary);
    const { label, latency } = panel.primary;
    put(unit, number.className ? "" : ` ${latency ? quantileName(engine.signals, latency) : label}`);
    for (const [element, fact] of values) {
      putValue(element, engine, fact);
      if (number.className && element.textContent === number.textContent) put(element, "as above");
    }
    draw(shown.history, engine, now);
  };
}

const draws = PANELS.map(build);

const keyOf = ({ target, model_name, engine }) => new URLSearchParams({ target, model_name, engine }).toString();
const nameOf = ({ target, model_name, engine }) =>
  [model_name || "model not known yet", engine && `engine ${engine}`, target].filter(Boolean).join(" · ");

/** Rows keep their places and change their text. The order rests while somebody points at it or has the focus in it. */
function drawList(engines, total, selected) {
  const list = $("#list ul");
  const resting = list.matches(":hover, :focus-within");
  const rows = [...list.children];
  const placed = resting ? rows.map((row) => engines.find((one) => keyOf(one) === row.dataset.key)) : [];
  const inOrder = [...placed.filter(Boolean), ...engines.filter((one) => !placed.includes(one))];
  inOrder.forEach((engine, position) => {
    const row = rows[position] ?? list.appendChild(newRow());
    const button = row.firstElementChild;
    row.dataset.key = keyOf(engine);
    button.className = SEVERITY[engine.verdict.kind];
    if (keyOf(engine) === selected) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
    const [kind, name, reason] = button.children;
    put(kind, engine.verdict.kind + (engine.conditions ? ` · ${engine.conditions} alert${engine.conditions > 1 ? "s" : ""}` : ""));
    put(name, nameOf(engine));
    put(reason, engine.verdict.reason);
    button.title = `${nameOf(engine)}\n${engine.verdict.sentence}`;
  });
  rows.slice(inOrder.length).forEach((row) => row.remove());
  list.parentElement.setAttribute("aria-label", `Engines, worst first, ${engines.length} of ${total}`);
  document.body.classList.toggle("several", total > 1);
}

function newRow() {
  const row = document.createElement("li");
  const button = row.appendChild(document.createElement("button"));
  button.type = "button";
  for (const name of ["kind", "name", "reason"]) button.appendChild(document.createElement("span")).className = name;
  button.addEventListener("click", () => {
    location.hash = row.dataset.key;
    refresh();
  });
  return row;
}

function drawDetail(engine, now) {
  const { verdict } = engine;
  const section = $("#verdict");
  section.className = SEVERITY[verdict.kind];
  put(section.querySelector("h2"), verdict.kind);
  put(section.querySelector(".sentence"), verdict.reason);
  const alerts = engine.conditions.length;
  put(section.querySelector(".about"), `${nameOf(engine)} · scraped ${ago(engine.age_seconds)} · ${alerts || "no"} alert${alerts === 1 ? "" : "s"} if this lasts`);
  for (const draw of draws) draw(engine, now);
  drawFiring(engine.conditions);
  document.title = `${verdict.kind} · ${engine.model_name || engine.target} · vLLM Sidecar`;
  announce(engine);
}

/** Spoken when the kind of verdict changes, not with every number in it. */
function announce(engine) {
  const said = `${keyOf(engine)} ${engine.verdict.kind}`;
  if (shown.kind === said) return;
  shown.kind = said;
  put($("#announcement"), `${nameOf(engine)}: ${engine.verdict.sentence}`);
}

/** Items stay as long as their alerts hold, for somebody may be reaching for a link; alerts have one order. */
function drawFiring(conditions) {
  const list = $("#firing ul");
  const wanted = conditions.length ? conditions : [{ alert: "" }];
  for (const item of [...list.children]) {
    if (!wanted.some(({ alert }) => alert === item.dataset.alert)) item.remove();
  }
  let next = list.firstElementChild;
  for (const { alert, lasting, summary, runbook_url } of wanted) {
    const item = next?.dataset.alert === alert ? next : list.insertBefore(newAlert(alert, runbook_url), next);
    put(item.lastElementChild, alert ? `: ${summary}. Fires after ${lasting}.` : "None.");
    next = item.nextElementSibling;
  }
}

function newAlert(alert, runbook_url) {
  const item = document.createElement("li");
  item.dataset.alert = alert;
  if (alert) {
    const link = item.appendChild(document.createElement("a"));
    link.href = runbook_url;
    link.rel = "noreferrer";
    link.textContent = alert;
  }
  item.appendChild(document.createElement("span"));
  return item;
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MILLISECONDS), cache: "no-store" });
  if (!answer.ok) throw new Error(`answers ${answer.status}`);
  return answer.json();
}

async function readHistory(engine) {
  const key = keyOf(engine);
  const setBack = shown.history.unix_seconds.at(-1) > engine.unix_seconds; // the clock: what was read is of no time now
  if (shown.key !== key || setBack) {
    shown.key = key;
    shown.history = { unix_seconds: [] };
  }
  const since = shown.history.unix_seconds.at(-1) ?? 0;
  if (since && engine.unix_seconds - since < shown.history.step_seconds) return;
  const answer = await ask(`${HISTORY}?${key}&since=${since}`);
  const found = answer.engines[0]?.series;
  const readMeanwhile = shown.key !== key || (shown.history.unix_seconds.at(-1) ?? 0) !== since;
  if (!found || readMeanwhile) return;
  const from = answer.unix_seconds - SECONDS;
  const skipped = shown.history.unix_seconds.filter((at) => at < from).length;
  const merged = { step_seconds: answer.step_seconds };
  for (const name of Object.keys(found)) merged[name] = [...(shown.history[name] ?? []).slice(skipped), ...found[name]];
  shown.history = merged;
}

/** What the address says is looked at; anything else in it means nothing. */
function selection() {
  const given = new URLSearchParams(location.hash.slice(1));
  const known = ["target", "model_name", "engine"].filter((name) => given.has(name));
  return new URLSearchParams(known.map((name) => [name, given.get(name)]));
}

let asking = null;

async function refresh() {
  const turn = (asking = Symbol("turn"));
  try {
    const state = await ask(`page/state?${selection()}`);
    if (turn !== asking) return;
    if (state.selected) await readHistory(state.selected);
    if (turn !== asking) return;
    shown.answeredAt = performance.now();
    document.body.classList.remove("silent");
    put($("#connection"), `version ${state.version} · live`);
    drawList(state.engines, state.engines_total, state.selected && keyOf(state.selected));
    if (state.selected) drawDetail(state.selected, state.unix_seconds);
    $("#columns").hidden = !state.selected;
    if (!state.selected) put($("#connection"), "no engine is watched: see the setting url, targets or discovery");
  } catch (error) {
    if (turn !== asking) return;
    const seconds = shown.answeredAt === null ? null : (performance.now() - shown.answeredAt) / 1000;
    document.body.classList.add("silent");
    put($("#connection"), `the sidecar does not answer (${error.message}); what is shown is from ${ago(seconds)}`);
  }
}

async function live() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, EVERY_MILLISECONDS));
  }
}

window.addEventListener("hashchange", refresh);
$(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("#detail").focus();
});
live();
