/** What is shown of an engine: each panel has one large number, a few small ones, and a chart. */

/** The value at the end of a path of labels; a label that is left open takes the first there is. */
function at(signals, name, ...labels) {
  let found = signals[name] ?? null;
  for (const label of labels) {
    if (found === null || typeof found !== "object") break;
    found = found[label] ?? null;
  }
  while (found !== null && typeof found === "object") found = Object.values(found)[0] ?? null;
  return found;
}

/** A quantile, by the highest set. */
function quantile(signals, latency) {
  return at(signals, "latency_quantile_seconds", latency, highestOf(signals, latency));
}

function highestOf(signals, latency) {
  return Object.keys(signals.latency_quantile_seconds?.[latency] ?? {}).reduce((one, other) => (Number(other) > Number(one) ? other : one), "0");
}

/** Which quantile that is: p99 of 1m. */
export function quantileName(signals, latency) {
  const q = highestOf(signals, latency);
  const [window] = Object.keys(signals.latency_quantile_seconds?.[latency]?.[q] ?? {});
  return window === undefined ? "" : `p${Number((Number(q) * 100).toFixed(6))} of ${window}`;
}

const sum = (found) => (found ? Object.values(found).reduce((one, other) => one + other, 0) : null);
const highest = (found) => (found ? Math.max(...Object.values(found)) : null);

function share(signals, state) {
  const spent = signals.gpu_cost_dollars_total;
  const bill = sum(spent);
  return bill > 0 ? spent[state] / bill : null;
}

const own = (name, label, unit, ...labels) => ({ metric: name, label, unit, of: (engine) => at(engine.signals, name, ...labels) });
const port = (name, label, unit, ...labels) => ({ metric: name, label, unit, of: (engine) => at(engine.target_signals, name, ...labels) });
const made = (name, label, unit, of, latency) => ({ metric: name, label, unit, of, latency });

export const PANELS = [
  {
    title: "Decode batch",
    primary: own("decode_batch_size", "sequences a step", "count"),
    facts: [
      own("crossover_positions", "crossover, positions", "count"),
      own("crossover_ratio", "step of the crossover", "ratio"),
      own("step_seconds", "step", "seconds"),
      made("saturation_ratio", "fullest resource", "ratio", (engine) => highest(engine.signals.saturation_ratio)),
    ],
    chart: {
      unit: "count",
      series: [["decode_batch_size", "decode batch"]],
      limit: ["crossover", (engine) => at(engine.signals, "crossover_positions")],
    },
  },
  {
    title: "Requests",
    primary: made("waiting_requests", "waiting", "count", (engine) => sum(engine.signals.waiting_requests)),
    facts: [
      own("running_requests", "running", "count"),
      own("prefilling_requests", "prefilling", "count"),
      own("queue_growth_requests_per_second", "queue grows per second", "count"),
      own("goodput_ratio", "meet objectives, at least", "ratio", "lower"),
    ],
    chart: {
      unit: "count",
      series: [["running_requests", "running"], ["waiting_requests", "waiting"], ["prefilling_requests", "prefilling"]],
    },
  },
  {
    title: "Time to first token",
    primary: made("latency_quantile_seconds", "", "seconds", (engine) => quantile(engine.signals, "ttft"), "ttft"),
    facts: [
      own("predicted_ttft_seconds", "predicted for a new request", "seconds"),
      made("slo_ttft", "objective", "seconds", (engine) => engine.slo.ttft_seconds),
      own("ttft_queue_seconds", "queue's part", "seconds"),
      own("ttft_prefill_seconds", "prefill's part", "seconds"),
    ],
    chart: {
      unit: "seconds",
      series: [["ttft_seconds", "measured"], ["predicted_ttft_seconds", "predicted"]],
      limit: ["objective", (engine) => engine.slo.ttft_seconds],
    },
  },
  {
    title: "Inter-token latency",
    primary: made("latency_quantile_seconds", "", "seconds", (engine) => quantile(engine.signals, "itl"), "itl"),
    facts: [
      made("slo_itl", "objective", "seconds", (engine) => engine.slo.itl_seconds),
      made("latency_quantile_seconds", "per output token, at that", "seconds", (engine) => quantile(engine.signals, "tpot")),
      made("slo_tpot", "its objective", "seconds", (engine) => engine.slo.tpot_seconds),
    ],
    chart: {
      unit: "seconds",
      series: [["itl_seconds", "measured"]],
      limit: ["objective", (engine) => engine.slo.itl_seconds],
    },
  },
  {
    title: "KV cache",
    primary: own("kv_usage_ratio", "used", "ratio"),
    facts: [
      own("kv_preemption_point_sequences", "preemption point, sequences", "count"),
      own("kv_headroom_sequences", "room for sequences", "count"),
      own("kv_full_in_seconds", "full in", "seconds"),
      own("kv_capacity_tokens", "capacity, tokens", "count"),
    ],
    chart: { unit: "ratio", series: [["kv_usage_ratio", "used"]], top: 1 },
  },
  {
    title: "Preemptions",
    primary: own("preemptions_per_arrival", "per arrival", "count"),
    facts: [
      own("preemptions_total", "since the sidecar started", "count"),
      own("arrivals_total", "arrivals since", "count"),
      own("computed_prompt_tokens_per_arrival", "prompt tokens for each", "count"),
    ],
    chart: {
      unit: "count",
      series: [["preemptions_per_arrival", "per arrival"]],
      limit: ["alert", () => 0.01],
    },
  },
  {
    title: "Cost",
    primary: port("cost_dollars_per_million_tokens", "per million output tokens", "dollars", "output", "output"),
    facts: [
      port("busy_cost_dollars_per_million_tokens", "while busy", "dollars", "output", "output"),
      port("cost_baseline_dollars_per_million_tokens", "baseline", "dollars"),
      made("gpu_cost_dollars_total", "bill for busy GPUs", "ratio", (engine) => share(engine.target_signals, "busy")),
      made("gpu_cost_dollars_total", "bill for idle GPUs", "ratio", (engine) => share(engine.target_signals, "idle")),
    ],
    chart: {
      unit: "dollars",
      series: [["cost_dollars_per_million_tokens", "all"], ["busy_cost_dollars_per_million_tokens", "busy"]],
      limit: ["baseline", (engine) => at(engine.target_signals, "cost_baseline_dollars_per_million_tokens")],
    },
  },
  {
    title: "Speculative decoding",
    primary: own("speculation_advised", "advised", "advice"),
    facts: [
      own("speculation_expected_speedup_ratio", "throughput with it", "multiple", "throughput"),
      own("speculation_expected_speedup_ratio", "latency with it", "multiple", "latency"),
      own("speculation_break_even_batch", "loses throughput from batch", "count", "throughput"),
      own("speculation_tokens_per_step", "tokens a step and request", "count"),
    ],
    chart: {
      unit: "count",
      series: [["decode_batch_size", "decode batch"]],
      limit: ["loses from", (engine) => at(engine.signals, "speculation_break_even_batch", "throughput")],
    },
  },
  {
    title: "Warmness",
    primary: own("warmness_ratio", "of the KV cache written", "ratio"),
    facts: [
      own("prefix_cache_hit_ratio", "prompt from the cache", "ratio"),
      own("engine_restarts_total", "restarts", "count"),
    ],
    chart: { unit: "ratio", series: [["warmness_ratio", "warm"]], top: 1 },
  },
];
