"""The checks, in the order they run: each module registers its own."""

from checks import (  # noqa: F401
    view,
    pytorch,
    jax,
    cupy,
    numba,
    cuda_c,
    training,
    exactness,
    ways,
    sharing,
    lent,
    groups,
    several_gpus,
    live,
    killed,
    checkpoint,
    storm,
    refusal,
    wrong_input,
    speed,
)
