"""An agent on PyTorch that uses several GPUs. All sizes are bytes."""

from __future__ import annotations

import gc

import agent
import torch

held: list[torch.Tensor] = []


def start(devices: list[int]) -> dict:
    """Runs a kernel on each of these GPUs."""
    sums = [
        float(
            (
                torch.ones(512, 512, device=f"cuda:{device}")
                @ torch.ones(512, 512, device=f"cuda:{device}")
            ).sum()
        )
        for device in devices
    ]
    return {"sums": sums}


def info(device: int) -> dict:
    """Returns the figures of one GPU."""
    left, total = torch.cuda.mem_get_info(device)
    properties = torch.cuda.get_device_properties(device)
    return {
        "free": left,
        "total": total,
        "total_memory": properties.total_memory,
        "uuid": f"GPU-{properties.uuid}",
    }


def fill(device: int, seed: int = 1) -> dict:
    """Allocates odd sizes on one GPU until torch.cuda.OutOfMemoryError, then ever smaller ones."""

    def allocate(size: int) -> torch.Tensor:
        block = torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
        block[:: max(1, size // 64)] = 1
        return block

    found = agent.fill(allocate, seed, 200 << 20)
    held.extend(found.pop("blocks"))
    torch.cuda.synchronize(device)
    return {
        **found,
        "is_torch_oom": found.get("exception") == agent.type_name(torch.cuda.OutOfMemoryError()),
    }


def copy(first: int, second: int, size: int) -> dict:
    """Copies a tensor from one GPU to the other and back, by PyTorch's peer copy."""
    here = torch.arange(size, device=f"cuda:{first}", dtype=torch.int64).to(torch.uint8)
    there = here.to(f"cuda:{second}")
    return {"same": bool((there.to(f"cuda:{first}") == here).all())}


def free() -> dict:
    """Drops the tensors and the allocator's cache."""
    held.clear()
    gc.collect()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return {}


if __name__ == "__main__":
    agent.serve({order.__name__: order for order in (start, info, fill, copy, free)})
