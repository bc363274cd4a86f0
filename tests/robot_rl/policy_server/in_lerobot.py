"""For an interpreter that has lerobot: makes small policies, and asks them as lerobot's own programs do.

`in_lerobot.py make <kind> <directory>` saves one. `in_lerobot.py ask <directory> <observations.npz> <prompt>
<seed> <out.npy>` writes the chunk [H, A] of the frames [To, …] of each observation.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.utils import populate_queues, prepare_observation_for_inference

STATE, OBJECT, ACTION, SIZE = 3, 10, 7, 96


def features(*cameras):
    """Of the Lift task: the hand's position, and cameras or else the cube."""
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (STATE,))}
    if not cameras:
        inputs["observation.environment_state"] = PolicyFeature(FeatureType.ENV, (OBJECT,))
    for camera in cameras:
        inputs[f"observation.images.{camera}"] = PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE))
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))}
    return {"input_features": inputs, "output_features": outputs, "device": "cpu"}


def act(*cameras):
    return ACTConfig(
        **features(*cameras),
        chunk_size=6,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        pretrained_backbone_weights=None,
    )


def diffusion(scheduler, *cameras):
    return DiffusionConfig(
        **features(*cameras),
        n_obs_steps=2,
        horizon=8,
        n_action_steps=4,
        crop_shape=(88, 88),
        down_dims=(16, 32),
        n_groups=8,
        diffusion_step_embed_dim=16,
        spatial_softmax_num_keypoints=4,
        noise_scheduler_type=scheduler,
        num_train_timesteps=20,
        num_inference_steps=4,
    )


def smolvla(directory, **options):
    return SmolVLAConfig(
        **features("front", "wrist"),
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        resize_imgs_with_padding=(64, 64),
        num_vlm_layers=2,
        num_steps=3,
        vlm_model_name=str(vlm(directory)),
        **options,
    )


def vlm(directory):
    """A vision-language model like SmolVLM2, very small, with a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = {
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "image_token": "<image>",
        "end_of_utterance_token": "<end_of_utterance>",
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", extra_special_tokens=special
    )
    words = len(tokenizer)
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": words,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 64,
            "patch_size": 16,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
    )
    SmolVLMForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(directory)
    parts = {"image_processor": SmolVLMImageProcessor(), "video_processor": SmolVLMVideoProcessor()}
    SmolVLMProcessor(tokenizer=tokenizer, image_seq_len=4, **parts).save_pretrained(directory)
    return directory


def statistics(config):
    """Of a dataset that is not normalised."""
    stats = {}
    for name, feature in {**config.input_features, **config.output_features}.items():
        shape = (3, 1, 1) if feature.type is FeatureType.VISUAL else feature.shape
        ones = torch.ones(shape)
        stats[name] = {"mean": 0.1 * ones, "std": 0.3 * ones, "min": -0.8 * ones, "max": ones}
    return stats


KINDS = {
    "act": lambda folder: act("front"),
    "act_state": lambda folder: act(),
    "ddim": lambda folder: diffusion("DDIM", "front"),
    "ddim_state": lambda folder: diffusion("DDIM"),
    "ddpm": lambda folder: diffusion("DDPM", "front"),
    "smolvla": lambda folder: smolvla(folder / "vlm"),
    "smolvla_bf16": lambda folder: smolvla(folder / "vlm", load_vlm_weights=True),
}


def make(kind, directory):
    torch.manual_seed(0)
    directory = Path(directory)
    config = KINDS[kind](directory.parent)
    policy = get_policy_class(config.type)(config)
    policy.save_pretrained(directory)
    for processor in make_pre_post_processors(config, dataset_stats=statistics(config)):
        processor.save_pretrained(directory)
    if kind == "act":
        # As lerobot saves it after a training from the weights of ImageNet, which are not here.
        saved = json.loads((directory / "config.json").read_text())
        saved["pretrained_backbone_weights"] = "ResNet18_Weights.IMAGENET1K_V1"
        (directory / "config.json").write_text(json.dumps(saved))


def ask(directory, observations, prompt, seed, out):
    config = PreTrainedConfig.from_pretrained(directory)
    if config.type == "act":
        config.pretrained_backbone_weights = None
    policy = get_policy_class(config.type).from_pretrained(directory, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=directory)
    arrays = dict(np.load(observations, allow_pickle=False))
    chunks = []
    for row in range(len(arrays["observation.state"])):
        policy.reset()
        for step in range(config.n_obs_steps):
            frame = {name: array[row, step] for name, array in arrays.items()}
            batch = before(prepare_observation_for_inference(frame, torch.device("cpu"), prompt))
            if config.type == "diffusion":
                batch.pop("action")  # as `select_action` does
                if "observation.images.front" in batch:
                    batch["observation.images"] = torch.stack([batch["observation.images.front"]], dim=-4)
                policy._queues = populate_queues(policy._queues, batch)
        torch.manual_seed(int(seed))
        with torch.inference_mode():
            chunk = policy.predict_action_chunk(batch)
            # Step by step, as `select_action` and the postprocessor are used.
            chunks.append(torch.stack([after(step) for step in chunk.unbind(1)], 1)[0].numpy())
    np.save(out, np.stack(chunks))


if __name__ == "__main__":
    {"make": make, "ask": ask}[sys.argv[1]](*sys.argv[2:])
