"""The figures of scripts/measure scaling for people."""

from __future__ import annotations

from typing import Any

from benchmarks.scaling.model import line_through

Found = dict[str, Any]


def table(found: Found) -> str:
    """All of it, in Markdown."""
    simulated = found["simulated"]
    parts = [_origin(found), _actors(found), _costs(found), _heavy_tails(found), _many_cores(simulated["cores"])]
    return "\n\n".join(["# Scaling: 1 to 64 actors", *("\n".join(part) for part in parts)]) + "\n"


def _origin(found: Found) -> list[str]:
    work, rounds = found["work"], len(next(iter(found["rounds"].values())))
    return [
        f"{found['date']}; {found['machine']}. Made by `{found['command']}` in {found['minutes']:g} minutes; medians "
        f"of {rounds} rounds. {work['envs_per_actor']} environments per actor, {1e3 * work['step_seconds']:g} ms a "
        f"step, unrolls of {work['unroll_length']}."
    ]


def _actors(found: Found) -> list[str]:
    lines = [
        "| actors | steps/s | of ideal | simulated | cores in use | MB each (PSS) | pool, ms a batch | update, ms |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for count, row in found["actors"].items():
        model = row["of_ideal"] / _of(found["simulated"]["measured_over_simulated"], count)
        lines.append(
            f"| {count} | {row['steps_per_second']:,.0f} | {row['of_ideal']:.3f} | {model:.3f} | {row['cores']:.0%} | "
            f"{_of(found['memory_mb'], count)['pss']:.1f} | {1e3 * row['pool_seconds']:.2f} | "
            f"{1e3 * row['update_seconds']:.1f} |"
        )
    return lines


def _costs(found: Found) -> list[str]:
    learner, overload = found["learner"], found["overload"]
    return [
        f"One more actor costs {_added_memory(found):.1f} MB, and "
        f"{1e6 * learner['pool_seconds_per_actor_and_batch']:.0f} us of the learner's process for each batch: "
        f"{learner['share_of_2048_steps']:.2%} of what that takes for 2,048 env steps. "
        f"The learner ({learner['steps_per_second_of_the_update_alone']:,} steps/s alone) is saturated by "
        f"{learner['saturated_by_actors']:,} such actors. With {overload['actors']} actors and an update "
        f"{overload['updates_per_batch']} times as long, which takes longer than collecting, throughput is "
        f"{overload['of_the_learners_rate']:.1%} of the update's alone."
    ]


def _heavy_tails(found: Found) -> list[str]:
    work, simulated = found["heavy_tails"]["work"], found["simulated"]["heavy_tails_of_ideal"]
    lines = [
        f"Steps of Pareto-distributed length ({work['actors']} actors, mean {1e3 * work['mean_step_seconds']:g} ms, "
        f"exponent {work['pareto_exponent']:g}):",
        "",
        "| max_policy_lag | of ideal | simulated | x lock-step |",
        "|-|-|-|-|",
    ]
    for lag, row in found["heavy_tails"]["lags"].items():
        lines.append(f"| {lag} | {row['of_ideal']:.3f} | {_of(simulated, lag):.3f} | {row['of_lock_step']:.2f} |")
    return lines


def _many_cores(simulated: Found) -> list[str]:
    cores = sorted({int(count) for shares in simulated.values() for count in shares})
    lines = [
        "Simulated, environments that compute 0.1 ms a step: share of what as many actors alone would do, by cores.",
        "",
        f"| learners | {' | '.join(map(str, cores))} |",
        "|-" * (1 + len(cores)) + "|",
    ]
    for learners, shares in simulated.items():
        known = {int(count): f"{share:.2f}" for count, share in shares.items()}
        lines.append(f"| {learners} | {' | '.join(known.get(count, '') for count in cores)} |")
    return lines


def _added_memory(found: Found) -> float:
    """MB of one more actor: the slope of all actors' PSS together."""
    totals = {int(count): int(count) * row["pss"] for count, row in found["memory_mb"].items()}
    return line_through(totals)[1]


def _of(figures: Found, key: Any) -> Any:
    """JSON has no numbers as keys."""
    return figures[key] if key in figures else figures[str(key) if isinstance(key, int) else int(key)]
