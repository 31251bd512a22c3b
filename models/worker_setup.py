"""What every process that trains runs on one core needs, in a pool or a Slurm array, so that all compute the same."""

import contextlib
import os
import time
from collections.abc import Iterator

from models.corpus import cache_dir


@contextlib.contextmanager
def worker_environment() -> Iterator[None]:
    """Set what a one-core JAX worker needs in the environment it will inherit."""
    wanted = {
        "JAX_PLATFORMS": "cpu",
        # Level 1 compiles a step in two thirds of the time and runs it as fast. XLA stops reading at a word without
        # dashes, so that the customary intra_op_parallelism_threads=1 would hide whatever follows it; a pinned
        # process has one thread anyway.
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def measured_peak() -> float:
    """Return the float32 matrix-product speed of this process in FLOP/s: the best of some 1024-cubed products."""
    import jax
    import jax.numpy as jnp

    size = 1024
    multiply = jax.jit(jnp.matmul)
    matrix = jnp.ones((size, size), jnp.float32)
    multiply(matrix, matrix).block_until_ready()
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
