"""Checkpoint folders: config files and bf16 safetensors, and back."""
import json

import torch
from drafter import BLOCK, FEATURES, HEAD, HEADS, KINDS, KV_HEADS, THETA, WINDOW, Drafter
from safetensors.torch import load_file, save_file
from target import LAYERS, SIZE, Target, is_attention
from tokenizer import ENDOFTEXT, IM_END, MASK

LENGTH = 4096

TARGET = SIZE | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "bos_token_id": ENDOFTEXT,
    "dtype": "bfloat16",
    "eos_token_id": ENDOFTEXT,
    "full_attention_interval": 4,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "layer_types": ["full_attention" if is_attention(i) else "linear_attention" for i in range(LAYERS)],
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": LENGTH,
    "model_type": "qwen3_5_text",
    "output_gate_type": "swish",
    "pad_token_id": None,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "tie_word_embeddings": False,
    "use_cache": True,
}

GENERATION = {
    "bos_token_id": ENDOFTEXT,
    "do_sample": False,
    "eos_token_id": [IM_END, ENDOFTEXT],
    "pad_token_id": ENDOFTEXT,
    "temperature": 0,
}

DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": BLOCK,
    "bos_token_id": None,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(FEATURES)},
    "dtype": "bfloat16",
    "eos_token_id": ENDOFTEXT,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "hidden_size": SIZE["hidden_size"],
    "initializer_range": 0.02,
    "intermediate_size": SIZE["intermediate_size"],
    "layer_types": list(KINDS),
    "max_position_embeddings": LENGTH,
    "max_window_layers": len(KINDS),
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "num_hidden_layers": len(KINDS),
    "num_key_value_heads": KV_HEADS,
    "num_target_layers": LAYERS,
    "pad_token_id": ENDOFTEXT,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": int(THETA),
    "sliding_window": WINDOW,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": SIZE["vocab_size"],
}


def write_json(path, value):
    path.write_text(json.dumps(dict(sorted(value.items())), indent=2) + "\n")


def write_weights(path, model):
    weights = {
        n: (p if n.endswith("A_log") else p.to(torch.bfloat16)).detach().cpu().contiguous()
        for n, p in model.named_parameters()
    }
    save_file(weights, path, metadata={"format": "pt"})


def write_target(folder, model):
    write_json(folder / "config.json", TARGET)
    write_json(folder / "generation_config.json", GENERATION)
    write_weights(folder / "model.safetensors", model)


def write_drafter(folder, model):
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", DRAFTER)
    write_weights(folder / "model.safetensors", model)


def read(model, path, device):
    model.load_state_dict({n: w.float() for n, w in load_file(path).items()}, strict=True)
    return model.to(device).eval().requires_grad_(False)


def read_pair(folder, device):
    target = read(Target(), folder / "model.safetensors", device)
    return target, read(Drafter(), folder / "drafter" / "model.safetensors", device)
