"""`gpulimit set` takes effect on a running process."""

from __future__ import annotations

from harness import GIB, Outcome, capped, check, gpulimit, judged, mib, python


@check("set-live", timeout=120, needs=("torch",))
def set_live(outcome: Outcome) -> None:
    """A raised limit allows growth, a lowered one refuses it; free never wraps."""

    def change(limit: str) -> None:
        answer = gpulimit("set", "live", f"max={limit}")
        outcome.expect(
            answer.returncode == 0,
            f"set max={limit} ended with {answer.returncode}: {answer.stderr.strip()}",
        )

    with judged(outcome, 3 * GIB) as judge:
        program = capped(python("torch_agent.py"), "2G", name="live")
        program.reply(90)
        program.ask("kernels")
        first = program.ask("fill", 60)
        outcome.expect(first.get("is_torch_oom"), f"at 2 GiB: {first.get('exception')}")
        peak = judge.read()["sum_peak"]
        outcome.expect(peak <= 2 * GIB, f"at 2 GiB NVML showed {mib(peak)}")

        change("3G")
        outcome.expect(
            program.ask("info").get("total") == 3 * GIB, "the total does not follow to 3 GiB"
        )
        more = program.ask("fill", 60, seed=4)
        outcome.expect(
            more.get("bytes", 0) >= 0.9 * GIB,
            f"after 3 GiB it got only {mib(more.get('bytes', 0))} more",
        )

        change("1G")
        seen = program.ask("info")
        outcome.expect(
            seen.get("total") == GIB and seen.get("free") == 0, f"lowered below usage: {seen}"
        )
        refused = program.ask("alloc", size=64 << 20)
        outcome.expect(
            "OutOfMemoryError" in refused.get("error", ""),
            f"growth above the lowered cap: {refused}",
        )
        held = judge.read()["sum_last"]
        outcome.expect(held > 2 * GIB, f"lowering took memory away: {mib(held)} left")

        program.ask("free")
        change("2500M")
        again = program.ask("alloc", size=GIB)
        outcome.expect("error" not in again, f"after raising again: {again}")
        outcome.figures |= {"filled_2G": first, "grown_3G": more, "view_1G": seen}
        outcome.key.append(
            f"2G: {mib(first.get('bytes', 0))}, 3G: +{mib(more.get('bytes', 0))}, 1G: free"
            f" {seen.get('free')}"
        )
        outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
