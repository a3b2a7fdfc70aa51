"""Which file may play which role in a membership attack, as far as files tell.

Files that were trained here say on which part of which split (:mod:`artifacts.training_record`).
Files from elsewhere say nothing; of those, only what their weights show can be checked.
"""

from collections.abc import Mapping

import torch
from torch import nn

from artifacts.errors import InputError
from artifacts.training_record import TrainingRecord
from lightning_modules.victim import load_autoencoder
from models.mae_weights import PretrainedAutoencoder
from models.masked_autoencoder import MaskedAutoencoder

# What a decoder needs of its encoder.
SIZES_OF_DECODER = ("embed_dim", "patch_size", "image_size", "in_chans")


def require_same_split(
    path: str, record: TrainingRecord | None, digests: Mapping[str, str]
) -> None:
    """Refuses a file whose training images are not those of its part in the present split.

    Args:
        path: The file.
        record: What it says, if anything.
        digests: Of each part's images, as ``MembershipSplits.training_digests``; empty where there
            is no split. The target is left out where its members are what is asked.

    Raises:
        InputError: It was made with another split.
    """
    if record is None or not record.part or not digests:
        return
    if digests.get(record.part, record.images if record.part == "target" else "") != record.images:
        raise InputError(
            f"{path} was trained as '{record.part}' of another split than this one; give "
            "--data.splits the membership_splits.json of its run"
        )


def require_shadow_of(path: str, shadow: MaskedAutoencoder, mask_ratio: float) -> None:
    """Refuses a shadow of another size, or mask ratio, than the attacked encoder's.

    Args:
        path: The attacked encoder's file.
        shadow: The model that is to be trained.
        mask_ratio: With which it is to be trained.

    Raises:
        InputError: The file is of no use, or something differs.
    """
    attacked = load_autoencoder(path)
    theirs, ours = _sizes(attacked.model), _sizes(shadow)
    wrong = [name for name in ours if ours[name] != theirs[name]]
    if wrong:
        raise InputError(
            f"the encoder in {path} has "
            + ", ".join(f"{name} {theirs[name]}" for name in wrong)
            + "; this model has "
            + ", ".join(str(ours[name]) for name in wrong)
            + ": a shadow is to have the size of the attacked encoder"
        )
    record = attacked.training.of_encoder if attacked.training else None
    if record is not None and record.mask_ratio != mask_ratio:
        raise InputError(
            f"the encoder in {path} was trained at mask ratio {record.mask_ratio:g}; set "
            f"model.mask_ratio to that, not to {mask_ratio:g}"
        )


def _sizes(model: MaskedAutoencoder) -> dict[str, int]:
    """What the encoder of a shadow should have as the attacked one has it."""
    blocks = model.encoder.get_submodule("blocks")
    assert isinstance(blocks, nn.Sequential)
    sizes = {name: getattr(model, name) for name in SIZES_OF_DECODER}
    return {**sizes, "depth": len(blocks)}


def require_attackers_decoder(
    path: str, decoder: PretrainedAutoencoder, encoder: PretrainedAutoencoder
) -> None:
    """Refuses to start a simulated decoder from the one that was trained with the encoder.

    Args:
        path: The file of the decoder.
        decoder: Its content.
        encoder: The encoder that the decoder is to be fine-tuned on.

    Raises:
        InputError: It is the decoder that the encoder's owner keeps.
    """
    records = [loaded.training for loaded in (decoder, encoder)]
    parts = {record.of_encoder.part for record in records if record and record.of_encoder}
    of_target = decoder.training is not None and decoder.training.part == "target"
    if of_target or (
        not any(part.startswith("shadow") for part in parts)
        and same_weights(decoder.model.encoder, encoder.model.encoder)
    ):
        raise InputError(
            f"{path} holds the decoder that was trained with the attacked encoder, which no "
            "attacker has; model.decoder is that of a shadow (--data.part=shadow_1)"
        )


def require_role(
    role: str, path: str, loaded: PretrainedAutoencoder, digests: Mapping[str, str]
) -> None:
    """Refuses a file that cannot play a role in :class:`~lightning_modules.MembershipInference`.

    Args:
        role: ``target``, ``simulated``, ``true_target``, ``shadow_0``, ``reference_0``, …
        path: The file.
        loaded: Its content.
        digests: As in :func:`require_same_split`.

    Raises:
        InputError: It holds no trained decoder, the decoder of the encoder's owner, a model of
            another role, or one of another split.
    """
    record = loaded.training
    if not loaded.has_decoder:
        raise InputError(
            f"{path} holds no trained decoder; lightning_modules.ShadowDecoder trains one"
        )
    kind, _, number = role.partition("_")
    whole = record.kind == "autoencoder" if record else loaded.origin != "afterimage"
    if role in ("target", "simulated") and whole:
        raise InputError(
            f"{path} has the decoder that was trained with its encoder, which no attacker has; "
            f"model.{role} takes what lightning_modules.ShadowDecoder trains, model.true_target "
            "the owner's, to compare with"
        )
    if record is None:
        return
    if kind in ("shadow", "true") and record.kind == "decoder":
        raise InputError(
            f"{path} has a simulated decoder; model.{'shadows' if kind == 'shadow' else role} "
            "takes an autoencoder that was trained whole (are shadows and references swapped?)"
        )
    part = f"shadow_{int(number) + 1}" if kind in ("shadow", "reference") else "target"
    own = record.of_encoder
    # Whoever trained the attacked encoder need not have done it on a part.
    if digests and not record.part and kind != "true":
        raise InputError(
            f"{path} was trained on no part of the split, so perhaps on images that are asked "
            "about; train it with datamodules.MembershipSplits"
        )
    if own is not None and own.part not in ("", part):
        raise InputError(
            f"{path} has the encoder of '{own.part}', but stands where that of '{part}' belongs: "
            "are files swapped?"
        )
    require_same_split(path, own, digests)
    require_same_split(path, record, digests)


def require_shared_encoder(paths: Mapping[str, str], models: Mapping[str, nn.Module]) -> None:
    """Refuses models of other encoders than their roles', and the owner's decoder in an attack.

    Args:
        paths: File by role.
        models: Autoencoder by role.

    Raises:
        InputError: An encoder is another than its role needs.
    """
    encoders = {role: model.get_submodule("encoder") for role, model in models.items()}
    for role in {"target", "simulated"} & set(models) if "true_target" in models else set():
        owners = models["true_target"].get_submodule("decoder")
        if same_weights(models[role].get_submodule("decoder"), owners):
            raise InputError(
                f"{paths[role]} has the decoder of {paths['true_target']}, its encoder's owner: no "
                "attacker has it"
            )
    for role, encoder in encoders.items():
        number = role.partition("_")[2]
        first = f"shadow_{number}" if role.startswith("reference") else "target"
        same = same_weights(encoder, encoders[first])
        if role.startswith("shadow") and same:
            raise InputError(f"{paths[role]} has the attacked encoder: it is no shadow")
        if not role.startswith("shadow") and not same:
            raise InputError(
                f"{paths[role]} has another encoder than {paths[first]}; "
                + (
                    "model.references are the encoders of model.shadows, in their order"
                    if role.startswith("reference")
                    else f"model.{role} has that of model.target"
                )
            )


def common_mask_ratio(
    asked: float | None, paths: Mapping[str, str], records: Mapping[str, TrainingRecord | None]
) -> float:
    """The mask ratio that the attacker's decoders were trained with: thresholds hold for no other.

    Args:
        asked: The mask ratio that was asked for, if one was.
        paths: File by role.
        records: What each file says. The target's owner may have taken another ratio.

    Raises:
        InputError: They differ, or nothing tells.
    """
    found = asked
    for role, record in records.items():
        if record is None or role == "true_target":
            continue
        if found is not None and record.mask_ratio != found:
            raise InputError(
                f"{paths[role]} was trained at mask ratio {record.mask_ratio:g}, not {found:g}: a "
                "threshold holds for one ratio; leave model.mask_ratio out to take the models' own"
            )
        found = record.mask_ratio
    if found is None:
        raise InputError("no file tells the mask ratio; set model.mask_ratio")
    return found


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Whether two modules hold the same numbers under the same names."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )
