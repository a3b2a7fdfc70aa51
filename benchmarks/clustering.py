"""Speed and memory of the average-linkage tree, against scikit-learn's.

* The comparison interleaves, in one process, ``attacks.clustering.average_linkage`` (with the
  matrix of distances, and without it as for larger inputs) and scikit-learn's
  ``AgglomerativeClustering(metric="cosine", linkage="average")``, and prints medians, ratios, and
  how far the trees' distances are apart.
* ``--large N`` builds one tree of N vectors and prints its time and its peak memory beyond the
  input.

    python benchmarks/clustering.py [--quick] [--threads 2] [--clock cpu]
    python benchmarks/clustering.py --large 50000 [--data draws|noise|swallowed]

On a machine that is busy with other things, ``--threads 1 --clock cpu`` gives usable ratios.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.clustering import average_linkage

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# A step's line is printed when so much more of the work is done.
SHOWN = 0.1


def vectors(kind: str, size: int, dim: int) -> Tensor:
    """Stand-ins for candidates (size, dim), float32.

    Args:
        kind: ``draws``: two in three resemble one of size / 50 samples, more or less, the rest is
            noise. ``noise``: no clusters at all. ``swallowed``: a common direction, so that one
            cluster swallows the others one by one, the worst case for cached neighbours.
        size: Number of vectors.
        dim: Their dimension.
    """
    generator = torch.Generator().manual_seed(0)
    result = torch.randn(size, dim, generator=generator)
    if kind == "noise":
        return result
    samples = torch.randn(max(1, size // 50) if kind == "draws" else 1, dim, generator=generator)
    # By parts, so that the peak of memory is not that of making the input.
    for part in torch.split(result, 1000):
        source = torch.randint(len(samples), (len(part),), generator=generator)
        strength = 2.0 * torch.rand(len(part), 1, generator=generator)
        if kind == "draws":
            strength *= torch.rand(len(part), 1, generator=generator) < 2 / 3
        part += strength * samples[source]
    return result


def compare(size: int, dim: int, repeats: int, clock: Callable[[], float]) -> None:
    """Prints medians and ratios of the interleaved runs."""
    from sklearn.cluster import AgglomerativeClustering

    data = vectors("draws", size, dim)
    array = data.numpy()

    def sklearn() -> NDArray[np.float64]:
        model = AgglomerativeClustering(
            n_clusters=2, metric="cosine", linkage="average", compute_distances=True
        )
        distances: NDArray[np.float64] = model.fit(array).distances_
        return distances

    ways: dict[str, Callable[[], NDArray[np.float64]]] = {
        "matrix": lambda: average_linkage(data)[:, 2],
        "means": lambda: average_linkage(data, matrix_bytes=0)[:, 2],
        "sklearn": sklearn,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    distances: dict[str, NDArray[np.float64]] = {}
    for repeat in range(repeats):
        for name, way in ways.items():
            start = clock()
            distances[name] = way()
            seconds[name].append(clock() - start)
            print(f"  run {repeat + 1} {name:<8} {seconds[name][-1]:8.2f} s", flush=True)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"n={size} D={dim}, median of {repeats}")
    for name, value in median.items():
        apart = np.abs(distances[name] - distances["sklearn"]).max()
        ratio = median["sklearn"] / value
        print(f"  {name:<8} {value:8.2f} s {ratio:6.2f}x sklearn, distances within {apart:.0e}")


def resident() -> int:
    """Memory of this process now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def large(kind: str, size: int, dim: int, clock: Callable[[], float]) -> None:
    """Prints time and peak memory of one large tree."""
    # What the first calls load and keep is not memory of the tree.
    average_linkage(vectors(kind, 300, dim), matrix_bytes=0)
    data = vectors(kind, size, dim)
    before = resident()
    start, shown = clock(), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if done >= (shown + SHOWN) * total:
            shown = done / total
            print(f"  {shown:4.0%} {clock() - start:8.1f} s", flush=True)

    tree = average_linkage(data, progress)
    seconds = clock() - start
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
    print(
        f"{kind}, n={size} D={dim}: {seconds:.1f} s, {peak / 1e9:.2f} GB beyond the input of "
        f"{data.nbytes / 1e9:.2f} GB, last merge at {tree[-1, 2]:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1,500 vectors")
    parser.add_argument("--large", type=int, metavar="N", help="one tree of N vectors")
    parser.add_argument("--data", choices=["draws", "noise", "swallowed"], default="draws")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    if options.large is not None:
        large(options.data, options.large, options.dim, clock)
    else:
        compare(1_500 if options.quick else options.size, options.dim, options.repeats, clock)


if __name__ == "__main__":
    main()
