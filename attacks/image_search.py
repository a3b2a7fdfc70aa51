"""Search for images through untrained generators: the inner loop of the inversion.

Reconstructing Training Data From Real-World Models Trained with Transfer Learning, eq. 3 and B.3.
Everything about an image is a function of its own seed and target, whatever else is in the batch.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attacks.views import random_views, total_variation

# Images (N, 3, S, S) and which of the searched images each shows (N,), to loss and similarity (N,).
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class NoiseSchedule:
    """Noise that is added to a generator's fixed input, anew at every iteration (B.3).

    Attributes:
        levels: One level a phase.
        until: Share of the iterations after which each phase but the last ends.
        reading: Whether a level is the noise's standard deviation, as in the method's reference,
            or its variance, as the paper's notation says.
    """

    levels: tuple[float, ...] = (10.0, 2.0, 0.5)
    until: tuple[float, ...] = (0.5, 0.75)
    reading: Literal["std", "variance"] = "std"

    def __post_init__(self) -> None:
        """Checks the phases.

        Raises:
            ValueError: Their numbers do not fit, or are out of range or order.
        """
        if len(self.levels) != len(self.until) + 1:
            raise ValueError(
                f"{len(self.levels)} noise levels need {len(self.levels) - 1} ends of phases, got "
                f"{len(self.until)}"
            )
        ordered = sorted(self.until) == list(self.until) and all(0 < u < 1 for u in self.until)
        if not ordered or min(self.levels) < 0:
            raise ValueError(
                "noise levels must not be negative, and ends of phases rise between 0 and 1; got "
                f"{list(self.levels)} and {list(self.until)}"
            )

    def std(self, iteration: int, iterations: int) -> float:
        """Standard deviation of the noise at an iteration, counted from 0."""
        phase = sum(iteration >= end * iterations for end in self.until)
        level = self.levels[phase]
        return level if self.reading == "std" else level**0.5


@dataclass(frozen=True)
class SearchSettings:
    """How images are searched for.

    Attributes:
        iterations: Steps of Adam.
        learning_rate: Of Adam.
        noise: Noise on the generators' input.
        views: Random views of each image that the backbone sees at an iteration.
        jitter: Largest shift of a view, in pixels.
        crop: Least side of a view's crop, as a share of the image; 1 crops nothing.
        total_variation: Weight of the total variation in the loss.
        averaging: Decay of a running average of the output; 0 takes the output itself.
        judge_every: Iterations between two looks at the noise-free images.
        keep: Whether the best image of these looks is the result, or the last.
        stop_above: Stop an image whose similarity, at a look, is above this.
        patience: Stop an image that did not improve for so many iterations.
    """

    iterations: int = 20_000
    learning_rate: float = 0.01
    noise: NoiseSchedule = NoiseSchedule()
    views: int = 1
    jitter: int = 0
    crop: float = 1.0
    total_variation: float = 0.0
    averaging: float = 0.0
    judge_every: int = 25
    keep: Literal["best", "last"] = "best"
    stop_above: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One makes no sense.
        """
        if min(self.iterations, self.views, self.judge_every) < 1:
            raise ValueError(
                "iterations, views and judge_every must be at least 1, got "
                f"{self.iterations}, {self.views} and {self.judge_every}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not (self.jitter >= 0 and 0 <= self.total_variation < math.inf):
            raise ValueError(
                "jitter and total_variation must not be negative, got "
                f"{self.jitter} and {self.total_variation}"
            )
        if not 0 < self.crop <= 1 or not 0 <= self.averaging < 1:
            raise ValueError(
                "crop must be in (0, 1] and averaging in [0, 1), got "
                f"{self.crop} and {self.averaging}"
            )
        if self.stop_above is not None and math.isnan(self.stop_above):
            raise ValueError("stop_above must be a number")
        if self.patience is not None and self.patience < 1:
            raise ValueError("patience must be at least 1")


def image_seeds(seed: int, indices: Sequence[int]) -> list[int]:
    """A seed for every image, from the run's seed and the image's index alone."""
    return [
        int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> 1)
        for index in indices
    ]


class ImageSearch:
    """Searches B images at once, each through its own generator, and keeps the best of each.

    On a CPU images are shared out among threads, from their noise to their gradient: convolutions
    of one image scale badly over the threads of a processor.

    Args:
        priors: Maps noise (A, c, S, S) and the numbers of A of the images to these images
            (A, 3, S, S); its parameters are searched.
        objective: Loss to minimise and similarity to report, of each image it is given.
        seeds: Seed of each image's noise and views (B,).
        noise_shape: (c, S, S).
        settings: How to search.
        apart: Whether the priors give some images for less than all of them, so that threads can
            share them.

    Attributes:
        images: What was kept of each image so far (B, 3, S, S).
        similarity: The similarity of that (B,).
        best: The highest similarity of a look so far (B,).
        improved_at: The iteration of that look (B,).
        stopped_at: The iteration that an image was stopped after, or 0 (B,).
        members: Which images are still searched for.
        history: The similarities (B,) at each look; NaN after an image was stopped.
    """

    def __init__(
        self,
        priors: nn.Module,
        objective: Objective,
        seeds: Sequence[int],
        noise_shape: tuple[int, int, int],
        settings: SearchSettings,
        *,
        apart: bool = True,
    ) -> None:
        self.priors = priors
        self.objective = objective
        self.settings = settings
        parameter = next(priors.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]
        self.noise_shape = noise_shape
        self.fixed = self._noise(range(len(seeds)))
        # Unlike the loop over parameters this does not dominate a small image's iteration.
        fused = self.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.Adam(
            priors.parameters(), lr=settings.learning_rate, fused=fused
        )
        self.members = list(range(len(seeds)))
        size = noise_shape[-1]
        self.iteration = 0
        self.average = torch.zeros(len(seeds), 3, size, size, device=self.device, dtype=self.dtype)
        self.images = torch.zeros_like(self.average)
        self.similarity = self.average.new_full((len(seeds),), -torch.inf)
        self.best = self.similarity.clone()
        self.improved_at = torch.zeros(len(seeds), dtype=torch.int64, device=self.device)
        self.stopped_at = torch.zeros_like(self.improved_at)
        self.history: list[Tensor] = []
        self._workers = min(torch.get_num_threads(), len(seeds)) if apart else 1
        self._pool: ThreadPoolExecutor | None = None

    def _noise(self, members: Sequence[int]) -> Tensor:
        draws = [
            torch.randn(
                self.noise_shape,
                generator=self.generators[member],
                device=self.device,
                dtype=self.dtype,
            )
            for member in members
        ]
        return torch.stack(draws)

    @property
    def done(self) -> bool:
        """Whether every image is finished."""
        return not self.members or self.iteration >= self.settings.iterations

    def advance(self) -> Tensor:
        """Makes one iteration of every image that is not finished.

        Returns:
            The similarity (A,) of the iteration's own images, with their noise and views; they are
            those that ``members`` named before.

        Raises:
            ValueError: An image left the finite numbers.
        """
        settings = self.settings
        self.optimizer.zero_grad()
        images, similarity = self._shared_out(self._descend)
        self.optimizer.step()
        self.iteration += 1
        if settings.averaging > 0:
            average = self.average[self.members]
            self.average[self.members] = average.lerp_(images.to(average), 1 - settings.averaging)
        if self.iteration % settings.judge_every == 0 or self.iteration == settings.iterations:
            self.judge()
        return similarity.view(-1, settings.views).mean(1)

    def _descend(self, members: list[int]) -> tuple[Tensor, Tensor]:
        """Gradients of some images; returns the images, and the similarity of each view."""
        settings = self.settings
        noise = self.fixed[members]
        std = settings.noise.std(self.iteration, settings.iterations)
        if std > 0:
            noise = noise + std * self._noise(members)
        images = self.priors(noise, members)
        views = random_views(
            images,
            [self.generators[member] for member in members],
            settings.views,
            jitter=settings.jitter,
            crop=settings.crop,
        )
        shown = torch.tensor(members, device=self.device).repeat_interleave(settings.views)
        loss, similarity = self.objective(views, shown)
        # Summed, so that each image's gradient is what it would be alone.
        total = loss.sum() / settings.views
        if settings.total_variation > 0:
            total = total + settings.total_variation * total_variation(images).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return images.detach(), similarity.detach()

    def _shared_out(
        self, work: Callable[[list[int]], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What ``work`` gives for the images that are not finished, in their order.

        On a CPU by as many threads as there are, each with its share of them.
        """
        members = self.members
        # Autocasting is a state of the thread that asked for it.
        whole = self.device.type != "cpu" or torch.is_autocast_enabled("cpu")
        if whole or min(len(members), self._workers) < 2:
            return work(members)
        if self._pool is None:
            cores = torch.get_num_threads() // self._workers
            self._pool = ThreadPoolExecutor(
                self._workers, initializer=torch.set_num_threads, initargs=(cores,)
            )
        shares = [share.tolist() for share in np.array_split(members, self._workers) if len(share)]
        first, second = zip(*self._pool.map(work, shares), strict=True)
        return torch.cat(first), torch.cat(second)

    @torch.no_grad()
    def judge(self) -> None:
        """Looks at the images without noise and views; keeps what improved; stops what is done.

        Raises:
            ValueError: An image left the finite numbers.
        """
        settings, members = self.settings, self.members
        index = torch.tensor(members, device=self.device)
        now, similarity = self._shared_out(self._look)
        if not bool(torch.isfinite(similarity).all()):
            raise ValueError(
                f"the search diverged by iteration {self.iteration}; lower the learning rate"
            )
        better = similarity > self.best[index]
        take = better if settings.keep == "best" else torch.ones_like(better)
        self.images[index[take]] = now[take]
        self.similarity[index[take]] = similarity[take]
        self.best[index[better]] = similarity[better]
        self.improved_at[index[better]] = self.iteration
        row = torch.full((len(self.generators),), torch.nan)
        row[index.cpu()] = similarity.float().cpu()
        self.history.append(row)
        stop = torch.zeros_like(better)
        if settings.stop_above is not None:
            stop |= similarity > settings.stop_above
        if settings.patience is not None:
            stop |= self.iteration - self.improved_at[index] >= settings.patience
        self.stopped_at[index[stop]] = self.iteration
        self.members = [int(member) for member in index[~stop]]

    @torch.no_grad()
    def _look(self, members: list[int]) -> tuple[Tensor, Tensor]:
        """The better of output and average of some images, and its similarity."""
        index = torch.tensor(members, device=self.device)
        shown = [self.priors(self.fixed[members], members)]
        averaging = self.settings.averaging
        if averaging > 0:
            # The average starts at zero: divide by the weight it has gathered.
            shown.append(self.average[members] / (1 - averaging**self.iteration))
        scores = torch.stack([self.objective(images, index)[1] for images in shown])
        similarity, choice = scores.to(self.best).max(dim=0)
        images = torch.stack([images.to(self.images) for images in shown])
        return images[choice, torch.arange(len(members), device=self.device)], similarity

    def state_dict(self) -> dict[str, Any]:
        """All that continuing needs."""
        return {
            "priors": self.priors.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": [generator.get_state() for generator in self.generators],
            "iteration": self.iteration,
            "members": self.members,
            "history": self.history,
            **{name: getattr(self, name) for name in _TENSORS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where :meth:`state_dict` was taken; the end is the same to the bit."""
        self.priors.load_state_dict(state["priors"])
        self.optimizer.load_state_dict(state["optimizer"])
        for generator, own in zip(self.generators, state["generators"], strict=True):
            generator.set_state(own.cpu())
        self.iteration = state["iteration"]
        self.members = list(state["members"])
        self.history = list(state["history"])
        for name in _TENSORS:
            setattr(self, name, state[name].to(self.device))


_TENSORS = ("average", "images", "similarity", "best", "improved_at", "stopped_at")
