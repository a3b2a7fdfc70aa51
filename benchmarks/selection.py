"""Which choice of candidates finds training samples: cut × ranking × representative.

Attacks probes by the default recipe (see benchmarks/recovery.py), chooses representatives in every
way, and compares them with the truth: the share of representatives above a cosine similarity to a
training sample, beside the same share for as many held-out samples; and how many distinct training
samples are above it to a representative. Means over the seeds, the first ± half of its 95% interval
(Student's t). Candidates are kept in ``--cache``.

    python -m benchmarks.selection --data digits --size 50
"""

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attacks.centres import REPRESENTATIVES
from attacks.label_trees import Cut, label_trees
from attacks.rankings import RANKINGS
from attacks.representatives import select_representatives as select
from attacks.similarity import nearest_by_cosine
from benchmarks.recovery import EFFORT, attack, silence
from benchmarks.victims import DATA, Victim, dataset, victim
from reporting.sweep import estimate

CUTS = [
    *(Cut(height=height) for height in (0.3, 0.4, 0.5, 0.6, 0.7)),
    *(Cut(maxclust=count) for count in (100, 300, 1000)),
]
TOPS = (45, 150)
THRESHOLDS = (0.75, 0.9)


def candidates(target: Victim, size: int, seed: int, cache: Path, draws: int) -> dict[str, Tensor]:
    """What the default attack finds, from the cache if it is there."""
    path = cache / f"{target.probe.stem}_default_{draws}.safetensors"
    if not path.exists():
        _, per_sample, iterations = EFFORT[size]
        module, _ = attack(
            "default",
            target.probe,
            iterations,
            seed,
            num_draws=draws,
            num_candidates=per_sample * size,
        )
        save_file({name: t.detach().contiguous() for name, t in module.result().items()}, path)
    return load_file(path)


def measure(target: Victim, run: dict[str, Tensor], seed: int) -> Iterator[tuple[str, list[float]]]:
    """For each way to choose, its name and figures."""
    draws, m, _ = run["candidates"].shape
    flat = (
        run["candidates"].flatten(0, 1),
        run["multipliers"].flatten(),
        torch.arange(draws).repeat_interleave(m),
        run["labels"].repeat(draws),
    )
    trees = label_trees(flat[0], flat[3])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(target.held_out), generator=generator)
    null = target.held_out[order[: len(target.train)]]

    def figures(vectors: Tensor) -> list[float]:
        numbers = []
        for top in TOPS:
            hits, _ = nearest_by_cosine(vectors[:top], target.train)
            chance, _ = nearest_by_cosine(vectors[:top], null)
            found, _ = nearest_by_cosine(target.train, vectors[:top])
            for threshold in THRESHOLDS:
                numbers += [
                    float((hits > threshold).double().mean()),
                    float((chance > threshold).double().mean()),
                    float((found > threshold).sum()),
                ]
        return numbers

    shuffled = torch.randperm(len(flat[0]), generator=generator)
    yield f"{'candidates at random':38}", figures(flat[0][shuffled[: max(TOPS)]])
    for cut in CUTS:
        where = f"height {cut.height}" if cut.maxclust is None else f"maxclust {cut.maxclust}"
        for ranking in RANKINGS:
            for representative in REPRESENTATIVES:
                chosen = select(
                    *flat,
                    cut=cut,
                    representative=representative,  # type: ignore[arg-type]
                    ranking=ranking,  # type: ignore[arg-type]
                    top=max(TOPS),
                    trees=trees,
                )
                yield f"{where:13} {ranking:15} {representative:8}", figures(chosen.vectors)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, help="folder with photos/, food_nature/, the ViT")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "afterimage")
    parser.add_argument("--data", nargs="+", default=["digits"], choices=DATA)
    parser.add_argument("--size", type=int, default=50, choices=list(EFFORT))
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21, 22])
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    silence()
    torch.set_num_threads(1)
    print(
        "precision (held out) distinct; top 45 above 0.75 | above 0.9 | top 150 above 0.75 |"
        " above 0.9"
    )
    for name in options.data:
        data = dataset(name, options.shared, options.cache)
        by_way: dict[str, list[list[float]]] = {}
        for seed in options.seeds:
            target = victim(name, data, options.size, seed, options.cache)
            run = candidates(target, options.size, seed, options.cache, options.draws)
            with torch.no_grad():
                for way, values in measure(target, run, seed):
                    by_way.setdefault(way, []).append(values)
        for way, rows in by_way.items():
            columns = [estimate(column) for column in zip(*rows, strict=True)]
            cells = [
                f"{hit.mean:.2f} ± {hit.half_width:.2f} ({null.mean:.2f}) {found.mean:5.1f}"
                for hit, null, found in zip(*(columns[i::3] for i in range(3)), strict=True)
            ]
            print(f"{name:7} {options.size:3} {way} {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
