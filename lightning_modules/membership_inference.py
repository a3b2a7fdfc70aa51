"""Membership inference on a released encoder: fitted on shadow models, judged on the truth."""

import logging
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from artifacts.errors import InputError, require_seed
from artifacts.training_record import TrainingRecord
from attacks.membership import (
    best_threshold,
    bootstrap_intervals,
    membership_metrics,
    unresolvable_rates,
)
from attacks.membership_baselines import DownstreamClassifier
from attacks.membership_scores import MembershipAttack
from attacks.membership_suite import (
    ATTACKS,
    UPPER_BOUND,
    ObservedModel,
    Viewer,
    shadow_rounds,
    upper_bound,
)
from lightning_modules.membership_roles import (
    common_mask_ratio,
    require_role,
    require_shared_encoder,
)
from lightning_modules.sharding import require_one_process
from lightning_modules.victim import load_autoencoder
from models.augmentation import resize
from models.masked_autoencoder import MaskedAutoencoder

_log = logging.getLogger(__name__)


class MembershipInference(L.LightningModule):
    """Scores images by every attack at once: was the encoder pre-trained on them?

    ``predict`` gives scores for images of which nothing is known; ``test`` also compares them with
    the truth. Either way the attacks learn from shadow models and the attacker's own images alone:
    no member of the target reaches them.

    Args:
        target: The attacked encoder with a decoder fine-tuned on the pool
            (:class:`~lightning_modules.ShadowDecoder`).
        shadows: Shadow autoencoders, each as :class:`~lightning_modules.MAEPretraining` trained it
            on images of its own.
        references: The shadows' encoders with decoders fine-tuned on the same pool, in that order.
        simulated: The attacked encoder with the paper's decoder, fine-tuned on the first shadow's
            training images; by default ``target``.
        true_target: The target with the decoder that its owner kept: evaluation only, the upper
            bound of attacks by error.
        attacks: Names of attacks (see :data:`attacks.membership_suite.ATTACKS`); by default all
            that the models and data allow.
        mask_ratio: Share of patches that are removed; by default that of the decoders' training,
            and another is refused.
        num_masks: Masks that each image is scored under. Baseline D has its own.
        complementary_masks: Whether masks cover each patch equally often, or else are independent.
        rows_per_pass: Masked images in one forward pass; bounds the memory.
        bootstrap: Resamples of the 95 % intervals.
        seed: Of masks and intervals.

    Raises:
        InputError: A number makes no sense, or an attack is unknown or named twice.
    """

    def __init__(
        self,
        target: str,
        shadows: list[str],
        references: list[str],
        simulated: str | None = None,
        true_target: str | None = None,
        attacks: list[str] | None = None,
        mask_ratio: float | None = None,
        num_masks: int = 32,
        complementary_masks: bool = True,
        rows_per_pass: int = 512,
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if attacks is not None and (not attacks or len(set(attacks)) < len(attacks)):
            raise InputError(
                f"model.attacks must name at least one attack, and each once, got {attacks}; "
                "leave it out (null) for all"
            )
        unknown = [name for name in attacks or [] if name not in ATTACKS]
        if unknown:
            raise InputError(f"unknown attack '{unknown[0]}'; choose from {', '.join(ATTACKS)}")
        if not shadows or len(shadows) != len(references):
            raise InputError(
                f"model.shadows names {len(shadows)} files, model.references {len(references)}; "
                "they must be as many, at least one"
            )
        if min(num_masks, rows_per_pass, bootstrap) < 1:
            raise InputError(
                "num_masks, rows_per_pass and bootstrap must be at least 1, got "
                f"{num_masks}, {rows_per_pass} and {bootstrap}"
            )
        if mask_ratio is not None and not 0 < mask_ratio < 1:
            raise InputError(
                f"model.mask_ratio: the mask ratio must be in (0, 1), got {mask_ratio}"
            )
        require_seed(seed)
        self.paths = {"target": target, "simulated": simulated or target}
        self.paths |= {"true_target": true_target} if true_target is not None else {}
        for number, (shadow, reference) in enumerate(zip(shadows, references, strict=True)):
            self.paths |= {f"shadow_{number}": shadow, f"reference_{number}": reference}
        self.num_shadows = len(shadows)
        self.names = attacks
        self.asked_mask_ratio = mask_ratio
        self.num_masks = num_masks
        self.complementary_masks = complementary_masks
        self.rows_per_pass = rows_per_pass
        self.bootstrap = bootstrap
        self.seed = seed
        self.models = nn.ModuleDict()
        self.training_records: dict[str, TrainingRecord | None] = {}
        self.attacks: dict[str, MembershipAttack] = {}
        self.scores: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        self.metrics: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Reads the models.

        Raises:
            InputError: A file is missing, of no use, in a role that is not its own, of another
                split, or of other sizes than the target; or there are several devices.
        """
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "attacker_loaders"):
            raise InputError("MembershipInference needs --data=datamodules.MembershipSplits")
        require_one_process(self.trainer, "membership inference runs")
        if len(data.shadow_names) != self.num_shadows:
            raise InputError(
                f"data.num_shadows is {len(data.shadow_names)}, but there are {self.num_shadows} "
                "model.shadows; make them equal"
            )
        if self.models:
            return
        digests = data.training_digests
        for name, path in self.paths.items():
            loaded = load_autoencoder(path)
            require_role(name, path, loaded, digests)
            self.training_records[name] = loaded.training
            self.models[name] = loaded.model.eval().requires_grad_(False)
            first = self.autoencoder("target")
            for size in ("image_size", "in_chans", "num_patches"):
                if getattr(loaded.model, size) != getattr(first, size):
                    raise InputError(f"{path} has another {size} than {self.paths['target']}")
        require_shared_encoder(self.paths, dict(self.models.items()))
        self.mask_ratio = common_mask_ratio(
            self.asked_mask_ratio, self.paths, self.training_records
        )
        try:
            self.viewer = Viewer.of_masks(
                self.autoencoder("target").num_patches,
                self.mask_ratio,
                self.num_masks,
                complementary=self.complementary_masks,
                rows_per_pass=self.rows_per_pass,
                seed=self.seed,
            )
        except ValueError as error:
            raise InputError(f"model.mask_ratio: {error}") from error

    def autoencoder(self, name: str) -> MaskedAutoencoder:
        """One of the models by its role."""
        model = self.models[name]
        assert isinstance(model, MaskedAutoencoder)
        return model

    def on_test_start(self) -> None:
        """Fits the attacks."""
        self.fit_attacks()

    def on_predict_start(self) -> None:
        """Fits the attacks."""
        self.fit_attacks()

    def fit_attacks(self) -> None:
        """Lets every attack learn from the shadow models and the attacker's images.

        Raises:
            InputError: An attack that was asked for lacks something.
        """
        loaders = self.trainer.datamodule.attacker_loaders()  # type: ignore[attr-defined]
        self.target = self._observed("target", "simulated", loaders.downstream)
        self.references = [
            self._observed(f"reference_{number}", f"shadow_{number}", loaders.downstream)
            for number in range(self.num_shadows)
        ]
        _log.info("showing the attacker's images to %d models", 1 + self.num_shadows)
        rounds, population = shadow_rounds(
            self.viewer,
            self.target,
            self.references,
            [_Images(self, loader) for loader in loaders.shadows],
            _Images(self, loaders.shadow_test),
            _Images(self, loaders.population),
        )
        names = self.names or list(ATTACKS)
        missing = {}
        if self.num_shadows < 2:
            missing["likelihood_ratio"] = "two shadow models (data.num_shadows)"
        if loaders.downstream is None:
            missing["baseline_a"] = "labelled images (data.sizes.downstream)"
        if self.num_masks < 2:
            missing["combined"] = "two masks (model.num_masks)"
        for name in names:
            if name in missing and self.names is not None:
                raise InputError(f"the attack '{name}' needs {missing[name]}")
            if name in missing:
                _log.info("without the attack '%s': it needs %s", name, missing[name])
            else:
                self.attacks[name] = ATTACKS[name]()
                try:
                    self.attacks[name].fit(rounds, population)
                except ValueError as error:
                    raise InputError(
                        f"the attack '{name}' cannot learn from the shadow models ({error}): did "
                        "the training of one diverge?"
                    ) from error
        if "true_target" in self.models and self.trainer.testing:
            self.attacks[UPPER_BOUND] = upper_bound()
            self.attacks[UPPER_BOUND].fit(rounds, population)

    def _observed(self, pool: str, simulated: str, downstream: Any) -> ObservedModel:  # noqa: ANN401
        """A model with its decoders, and baseline A's classifier if there are labelled images."""
        model = self.autoencoder(pool)
        classifier = None
        if downstream is not None:
            with torch.no_grad():
                embeddings = torch.cat([model.encode(x)[:, 0] for x in _Images(self, downstream)])
            classifier = DownstreamClassifier(embeddings, torch.cat([y for _, y in downstream]))
        return ObservedModel(model, self.autoencoder(simulated), classifier)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Scores (N,) of images (N, c, S, S) in [0, 1] by attack; lower is likelier a member."""
        seen = self.viewer.observe(self.target, self.references, [images])
        scores = {
            name: attack.score(seen) for name, attack in self.attacks.items() if name != UPPER_BOUND
        }
        if UPPER_BOUND in self.attacks:
            model = self.autoencoder("true_target")
            own = self.viewer.observe(ObservedModel(model, model), (), [images])
            scores[UPPER_BOUND] = self.attacks[UPPER_BOUND].score(own)
        for name, values in scores.items():
            if not bool(torch.isfinite(values).all()):
                raise InputError(
                    f"the attack '{name}' gives NaN or infinity for some images: did the training "
                    "of a model diverge?"
                )
        return scores

    def test_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Scores members (first loader) or non-members (second); the attack cannot tell which."""
        scores: dict[str, Tensor] = self(self._prepared(batch[0]))
        for name, values in scores.items():
            self.scores.setdefault(name, ([], []))[dataloader_idx].append(values)

    def predict_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Tensor]:
        """Scores of images by attack."""
        scores: dict[str, Tensor] = self(self._prepared(batch[0]))
        return scores

    def _prepared(self, images: Tensor) -> Tensor:
        return resize(images.to(self.device), self.autoencoder("target").image_size)

    def on_test_epoch_end(self) -> None:
        """Measures how well each attack tells members from non-members."""
        self.metrics = {
            "kind": "membership",
            "num_masks": self.num_masks,
            "mask_ratio": self.mask_ratio,
            "attacks": {},
        }
        for name, attack in self.attacks.items():
            members, non_members = self.joined_scores(name)
            self.metrics |= {"num_members": len(members), "num_non_members": len(non_members)}
            measured = membership_metrics(members, non_members, attack.threshold)
            intervals = bootstrap_intervals(
                members, non_members, attack.threshold, resamples=self.bootstrap, seed=self.seed
            )
            best = best_threshold(members, non_members)
            self.metrics["attacks"][name] = {
                **measured,
                "intervals": {key: list(value) for key, value in intervals.items()},
                "threshold": attack.threshold,
                # What the threshold costs: the shadows' own rates, and the best in hindsight.
                "shadow": membership_metrics(*attack.shadow_scores, attack.threshold),
                "asr_best_threshold": membership_metrics(members, non_members, best)["asr"],
            }
            notes = unresolvable_rates(len(non_members))
            self.metrics["notes"] = notes
            shown = {key: value for key, value in measured.items() if key not in notes}
            self.log_dict({f"membership/{name}/{key}": value for key, value in shown.items()})

    def joined_scores(self, name: str) -> tuple[Tensor, Tensor]:
        """All scores of members (m,) and non-members (n,) by one attack."""
        members, non_members = self.scores[name]
        return torch.cat(members), torch.cat(non_members)


class _Images:
    """The images of a loader, on the module's device and at its size, as often as asked for."""

    def __init__(self, module: MembershipInference, loader: Any) -> None:  # noqa: ANN401
        self.module = module
        self.loader = loader

    def __iter__(self) -> Iterator[Tensor]:
        for images, _ in self.loader:
            yield self.module._prepared(images)
