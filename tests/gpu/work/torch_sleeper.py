"""An agent on PyTorch that is suspended and resumed between its orders. All sizes are bytes."""

from __future__ import annotations

import os

# cuBLAS is deterministic only with a fixed workspace.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import agent
import torch

PIECE = 256 << 20
ODD = 0x9E3779B97F4A7C15 - (1 << 64)
"""A factor that gives each word of a pattern another value in all its bytes."""
PINNED = 64 << 20
"""The words of the pinned memory, which has 512 MiB."""

torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
blocks: list[torch.Tensor] = []
kept: dict = {}


# ---- training


def begin() -> dict:
    """Makes a net and its optimiser, always from the same start."""
    torch.manual_seed(7)
    kept["net"] = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, 2, 1),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32 * 16 * 16, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 10),
    ).cuda()
    kept["optimiser"] = torch.optim.AdamW(kept["net"].parameters(), 1e-3)
    return {}


def train(steps: int) -> dict:
    """Trains on; returns the losses, bit for bit."""
    losses = []
    for _ in range(steps):
        images = torch.randn(128, 3, 32, 32, device="cuda")
        labels = torch.randint(0, 10, (128,), device="cuda")
        kept["optimiser"].zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(kept["net"](images), labels)
        loss.backward()
        kept["optimiser"].step()
        losses.append(loss.item().hex())
    return {"losses": losses}


# ---- large memory, a graph, pinned memory


def pattern(index: int) -> torch.Tensor:
    """Returns the contents of a block."""
    words = PIECE // 8
    return torch.arange(words, device="cuda").add_(index * words).mul_(ODD)


def digest(values: torch.Tensor) -> int:
    """Returns a checksum of float32 values on the host that depends on every bit."""
    words = values.view(torch.int32).flatten().to(torch.int64)
    return int((words * torch.arange(1, words.numel() + 1)).sum())


def large(size: int) -> dict:
    """Fills blocks and pinned memory, and captures a graph."""
    for index in range(size // PIECE):
        blocks.append(pattern(index))
    torch.manual_seed(7)
    kept["source"] = (torch.randn(2048, 2048) / 64).pin_memory()
    kept["result"] = torch.empty(2048, 2048).pin_memory()
    kept["pinned"] = torch.arange(PINNED).pin_memory()
    x = kept["x"] = torch.zeros(2048, 2048, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.tanh(x @ x) + x
    torch.cuda.current_stream().wait_stream(side)
    kept["graph"] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(kept["graph"]):
        kept["y"] = torch.tanh(x @ x) + x
    torch.cuda.synchronize()
    return {"reserved": torch.cuda.memory_reserved()}


def look() -> dict:
    """Counts the blocks with wrong contents, compares the pinned memory, and replays the graph from
    pinned memory to pinned memory.
    """
    wrong = sum(not torch.equal(block, pattern(index)) for index, block in enumerate(blocks))
    expected = torch.arange(PINNED)
    there = kept["pinned"].to("cuda", non_blocking=True)
    pinned = torch.equal(kept["pinned"], expected) and torch.equal(there.cpu(), expected)
    kept["result"].zero_()
    kept["x"].copy_(kept["source"], non_blocking=True)
    kept["graph"].replay()
    kept["result"].copy_(kept["y"], non_blocking=True)
    torch.cuda.synchronize()
    return {"wrong": wrong, "pinned": pinned, "digest": digest(kept["result"])}


if __name__ == "__main__":
    agent.serve({order.__name__: order for order in (begin, train, large, look)})
