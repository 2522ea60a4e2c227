"""An agent on PyTorch. All sizes are bytes."""

from __future__ import annotations

import gc

import agent
import torch

held: list[torch.Tensor] = []


def info() -> dict:
    """Returns the figures that PyTorch shows to its user."""
    left, total = torch.cuda.mem_get_info()
    return {
        "free": left,
        "total": total,
        "total_memory": torch.cuda.get_device_properties(0).total_memory,
        "reserved": torch.cuda.memory_reserved(),
        "allocated": torch.cuda.memory_allocated(),
        "backend": torch.cuda.get_allocator_backend(),
    }


def start() -> dict:
    """Makes only the context."""
    torch.cuda.init()
    torch.cuda.synchronize()
    return {}


def kernels() -> dict:
    """Runs work of many kinds on small tensors; returns a checksum so that nothing is optimised
    away.
    """
    torch.manual_seed(1)
    x = torch.randn(512, 512, device="cuda")
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
    image = torch.randn(4, 3, 64, 64, device="cuda")
    y = (x @ x).softmax(-1) + torch.nn.functional.layer_norm(x, (512,))
    y = y + (x.bfloat16() @ x.bfloat16()).float()
    c = torch.nn.functional.conv2d(image, torch.randn(16, 3, 3, 3, device="cuda"), padding=1).relu()
    a = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    total = (
        y.sum()
        + c.mean()
        + a.float().sum()
        + x.sort().values[0, 0]
        + torch.fft.rfft(x).abs().mean()
    )
    torch.cuda.synchronize()
    return {"checksum": float(total)}


def edge() -> dict:
    """Uses many kernels for the first time while memory is full: what they load must fit into the
    limit or be refused.
    """
    # The tensor is a view, since there is no room for another one.
    x = held[-1][:4096].view(torch.float32)
    names = (
        "sin",
        "exp",
        "erf",
        "lgamma",
        "digamma",
        "sigmoid",
        "cumsum",
        "argsort",
        "median",
        "std",
        "prod",
        "i0",
        "sinc",
    )
    outcomes: dict[str, int] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            function = getattr(torch, name)
            function(x, 0) if name == "cumsum" else function(x)
            torch.cuda.synchronize()
            outcome = "ran"
        except Exception as error:
            outcome = agent.type_name(error)
            errors[name] = str(error)[:200]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return {"outcomes": outcomes, "errors": errors}


def allocate(size: int) -> torch.Tensor:
    """Allocates a tensor of `size` bytes, and writes it so that its memory is really taken."""
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    block[:: max(1, size // 64)] = 1
    return block


def fill(seed: int = 1, largest: int = 300 << 20) -> dict:
    """Allocates odd sizes until torch.cuda.OutOfMemoryError, then ever smaller ones."""
    found = agent.fill(allocate, seed, largest)
    held.extend(found.pop("blocks"))
    torch.cuda.synchronize()
    return {
        **found,
        "held": sum(t.numel() for t in held),
        "is_torch_oom": found.get("exception") == agent.type_name(torch.cuda.OutOfMemoryError()),
    }


def alloc(size: int, times: int = 1) -> dict:
    """Allocates `times` tensors of `size` bytes."""
    for _ in range(times):
        held.append(allocate(size))
    torch.cuda.synchronize()
    return {"held": sum(t.numel() for t in held)}


def free(keep_cache: bool = False) -> dict:
    """Drops the tensors and, unless asked otherwise, the allocator's cache."""
    held.clear()
    gc.collect()
    torch.cuda.synchronize()
    if not keep_cache:
        torch.cuda.empty_cache()
    return {"reserved": torch.cuda.memory_reserved()}


def graph() -> dict:
    """Captures a CUDA graph and replays it."""
    x = torch.ones(256, 256, device="cuda")
    (x @ x).relu()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x @ x).relu()
    captured.replay()
    torch.cuda.synchronize()
    return {"sum": float(y.sum())}


def streams(count: int) -> dict:
    """Makes streams that stay."""
    x = torch.ones(16, device="cuda")
    for _ in range(count):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x + 1
        keep.append(stream)
    torch.cuda.synchronize()
    return {}


keep: list[torch.cuda.Stream] = []


if __name__ == "__main__":
    orders = (info, start, kernels, edge, fill, alloc, free, graph, streams)
    agent.serve({order.__name__: order for order in orders})
