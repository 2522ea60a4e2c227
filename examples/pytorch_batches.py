"""Trains with the largest batch that fits: doubles the batch until memory runs out.

gpulimit run --max 4G -- python examples/pytorch_batches.py
"""

import torch

WIDTH, STEPS = 2048, 20


def train(net: torch.nn.Module, batch: int, steps: int) -> float:
    """Run some steps on random data, and return the last loss."""
    optimiser = torch.optim.SGD(net.parameters(), 1e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randn(batch, WIDTH, device="cuda")
        optimiser.zero_grad(set_to_none=True)
        loss = (net(rows) - rows).square().mean()
        loss.backward()
        optimiser.step()
    return loss.item()


def largest_batch(net: torch.nn.Module) -> int:
    """Return the largest power of two for which one step fits."""
    batch = 256
    while batch <= 1 << 22:
        try:
            train(net, 2 * batch, 1)
        except torch.cuda.OutOfMemoryError:
            break
        batch *= 2
    # PyTorch has cached the memory of the failed step in pieces that may not fit a smaller step.
    torch.cuda.empty_cache()
    return batch


def main() -> None:
    free, total = torch.cuda.mem_get_info()
    print(f"memory: {total / 2**30:.1f} GiB, free {free / 2**30:.1f} GiB")
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    net = torch.nn.Sequential(*layers).cuda()
    batch = largest_batch(net)
    loss = train(net, batch, STEPS)
    peak = torch.cuda.max_memory_reserved()
    print(f"batch {batch}: loss {loss:.4f} after {STEPS} steps, peak {peak / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
