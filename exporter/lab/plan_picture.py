"""A plan as a picture: batch against throughput, latency and cost, with the operating points marked."""

from pathlib import Path

from matplotlib.figure import Figure

from exporter.lab.economics import SECONDS_PER_HOUR, TOKENS_PER_MILLION
from exporter.lab.plan_inputs import Plan, PlanInputs
from exporter.lab.steady_state import engine_of


def draw_plan(inputs: PlanInputs, plan: Plan, path: Path) -> None:
    """Write the picture; the format is the path's extension.

    Raises:
        ValueError: the extension is no picture format.
        OSError: the file cannot be written.
    """
    engine = engine_of(inputs, inputs.roofline)
    marks = operating_points(plan)
    last = max(8, round(1.2 * max(marks.values())))
    batches = range(1, last + 1)
    made = [engine.tokens_per_second(batch) for batch in batches]
    curves = [
        ("output tokens/s", made),
        ("mean step, ms", [engine.step_seconds(batch) * 1000 for batch in batches]),
    ]
    if inputs.gpu_hour_dollars:
        hour = inputs.gpu_hour_dollars * inputs.roofline.gpus / SECONDS_PER_HOUR * TOKENS_PER_MILLION
        curves.append(("$ per 1M output tokens", [hour / rate for rate in made]))
    figure = Figure(figsize=(8, 2.6 * len(curves)), layout="constrained")
    all_axes = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    for axes, (label, values) in zip(all_axes, curves, strict=True):
        axes.plot(batches, values, color="black")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        for number, (name, batch) in enumerate(marks.items()):
            axes.axvline(batch, color=f"C{number}", linestyle="--", label=f"{name}: {batch:.0f}")
    for axes in all_axes[:2]:
        axes.set_ylim(bottom=0)
    for axes in all_axes[2:]:
        axes.set_yscale("log")
    if inputs.itl_slo_seconds is not None:
        all_axes[1].axhline(inputs.itl_slo_seconds * 1000, color="red", linewidth=0.8)
    all_axes[0].legend(fontsize="small")
    all_axes[-1].set_xlabel("decode batch, sequences")
    model = inputs.roofline.model
    figure.suptitle(f"{model.total_params / 1e9:.0f}B on {inputs.roofline.gpus} x {inputs.roofline.hardware.name}")
    figure.savefig(path)


def operating_points(plan: Plan) -> dict[str, float]:
    """The batches worth a line, by name."""
    points = {
        "mean rate": plan["demand"][0]["batch_sequences"],
        "crossover": plan["roofline"][0]["batch_at_crossover_sequences"],
        "preemption point": plan["kv"][0]["preemption_point_sequences"],
        "limit": plan["kv"][0]["batch_limit_sequences"],
    }
    return {name: float(batch) for name, batch in points.items() if batch is not None}
