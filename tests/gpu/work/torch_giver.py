"""An agent on PyTorch that gives its cache back under pressure. All sizes are bytes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# cuBLAS is deterministic only with a fixed workspace.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import agent
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import gpulimit  # noqa: E402

torch.use_deterministic_algorithms(True, warn_only=True)
report: list[str] = []


def enable() -> dict:
    """Has the module give the cache back, and keep its reports."""
    gpulimit.torch.enable(report=report.append)
    return {"active": gpulimit.active()}


def cache(size: int) -> dict:
    """Leaves so much in PyTorch's cache, in blocks of 256 MiB."""
    blocks = [
        torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(size >> 28)
    ]
    torch.cuda.synchronize()
    blocks.clear()
    return cached()


def cached() -> dict:
    """Returns what PyTorch has reserved."""
    return {"reserved": torch.cuda.memory_reserved()}


def request(size: int) -> dict:
    """Allocates one tensor; returns how long that took and how it ended."""
    torch.cuda.init()
    torch.cuda.synchronize()
    began = time.monotonic()
    try:
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        granted = block.numel() == size
    except torch.cuda.OutOfMemoryError:
        granted = False
    ended = time.monotonic()
    return {"granted": granted, "ms": (ended - began) * 1e3, "ended": ended}


def train(steps: int) -> dict:
    """Trains from the same start, and tells of a step that is under way.

    Returns the losses bit for bit, the longest step, and when the last one ended.
    """
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
    losses, longest = [], 0.0
    for step in range(steps):
        began = time.monotonic()
        # Sizes differ, so that the allocator has work in every step.
        data = torch.randn(2048 + step % 7 * 1024, 1024, device="cuda")
        optimiser.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(net(data), data)
        loss.backward()
        if step == 10:
            agent.send(trains=True)
        optimiser.step()
        losses.append(loss.item().hex())
        longest = max(longest, time.monotonic() - began)
    ended = time.monotonic()
    return {"losses": losses, "longest_ms": longest * 1e3, "ended": ended, **cached()}


def capture(seconds: float) -> dict:
    """Captures a graph, with a pause in the middle, and replays it.

    `torch.cuda.graph` would empty the cache before it captures.
    """
    x = torch.ones(256, 256, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (x @ x).relu()
        torch.cuda.synchronize()
        graph.capture_begin()
        y = (x @ x).relu()
        agent.send(captures=True)
        time.sleep(seconds)
        y = y + x
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    return {"sum": float(y.sum())}


def reports() -> dict:
    """Returns the reports of out-of-memory errors so far."""
    return {"reports": report}


def batch() -> dict:
    """Looks for the largest batch, and counts the refused steps."""
    refused = steps = 0

    def step(count: int) -> None:
        nonlocal refused, steps
        steps += 1
        try:
            torch.empty(count, 1 << 20, device="cuda").add_(1)
        except torch.cuda.OutOfMemoryError:
            refused += 1
            raise

    return {"batch": gpulimit.torch.find_batch(step), "refused": refused, "steps": steps}


if __name__ == "__main__":
    orders = (enable, cache, cached, request, train, capture, reports, batch)
    agent.serve({order.__name__: order for order in orders})
