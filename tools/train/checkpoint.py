"""A model as a Hugging Face folder of model_type deepseek_v3: config.json, two safetensors files and their index. A model with
indexers is one of model_type deepseek_v32: the same, and a third file."""

import dataclasses
import json
import os
import pathlib
import shutil

import safetensors
import safetensors.torch
import torch

import model as model_lib

NUM_FILES = 2
INDEXER_FILE = "model-indexer.safetensors"
EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")


def config_json(config):
    kind = ("DeepseekV32ForCausalLM", "deepseek_v32") if config.index_topk else ("DeepseekV3ForCausalLM", "deepseek_v3")
    return {
        "architectures": [kind[0]], "model_type": kind[1], "dtype": "bfloat16",
        **{name: value for name, value in dataclasses.asdict(config).items() if value is not None},
        "num_key_value_heads": config.num_attention_heads, "num_nextn_predict_layers": 1, "moe_layer_freq": 1,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "hidden_act": "silu",
        "rope_interleave": True, "rope_scaling": None, "attention_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "initializer_range": 0.02, "use_cache": True,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 4,
    }


def read_config(folder):
    stored = json.loads((pathlib.Path(folder) / "config.json").read_text())
    return model_lib.Config(**{field.name: stored.get(field.name) for field in dataclasses.fields(model_lib.Config)})


def published_tensors(model):
    """Tensors by their published names: bf16, but the routers' biases, which are f32 as in DeepSeek-V3. The head and the
    draft layer's embedding and head are the embedding, and are not stored again."""
    tensors = {}
    for name, value in model.state_dict().items():
        name = "model." + name
        value = value.detach().float().cpu()
        head, _, part = name.rpartition(".experts.")
        if part in EXPERT_PARTS:
            for i, expert in enumerate(value):
                tensors[f"{head}.experts.{i}.{part}.weight"] = expert.bfloat16().contiguous()
        elif name.endswith("e_score_correction_bias"):
            tensors[name] = value
        else:
            tensors[name] = value.bfloat16()
    return tensors


def save(model, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(model.config), indent=2) + "\n")
    tensors = published_tensors(model)
    total = sum(t.nbytes for t in tensors.values())
    files = [{} for _ in range(NUM_FILES)]
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        smallest = min(files, key=lambda part: sum(t.nbytes for t in part.values()))
        smallest[name] = tensor
    names = {}
    for i, part in enumerate(files):
        file = f"model-{i + 1:05d}-of-{NUM_FILES:05d}.safetensors"
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        names |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def save_indexers(model, trunk, folder):
    """A folder of the trunk's files as symbolic links, and what the indexers add. The folder's parent should be the trunk's."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(model.config), indent=2) + "\n")
    tensors = {name: value for name, value in published_tensors(model).items() if ".indexer." in name}
    safetensors.torch.save_file(tensors, folder / INDEXER_FILE, metadata={"format": "pt"})
    (folder / INDEXER_FILE).chmod(0o644)
    index = json.loads((trunk / "model.safetensors.index.json").read_text())
    index["metadata"]["total_size"] += sum(t.nbytes for t in tensors.values())
    index["weight_map"] = dict(sorted((index["weight_map"] | dict.fromkeys(tensors, INDEXER_FILE)).items()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    for name in ("eval", "generation_config.json", "tokenizer.json", "tokenizer_config.json", *sorted(set(index["weight_map"].values()))):
        if name != INDEXER_FILE:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(os.path.join("..", trunk.name, name))


def with_tensors(trunk, folder, tensors):
    """A folder of the trunk's weight files in which `tensors`, by published names, lie in the others' places: every other byte
    stays, which is looked at."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(trunk.glob("*.safetensors")):
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if name in tensors:
                first, last = (begin + offset for offset in entry["data_offsets"])
                stored = safetensors.torch.save({name: tensors[name]})
                data[first:last] = stored[8 + int.from_bytes(stored[:8], "little"):]
        (folder / path.name).write_bytes(data)
    shutil.copy(trunk / "model.safetensors.index.json", folder)
    check_other_tensors(trunk, folder, tensors)


def check_other_tensors(trunk, folder, tensors):
    """Stops unless the folder's weight files are the trunk's, but for the bytes of `tensors`, which must all be there."""
    found = set()
    for path in sorted(trunk.glob("*.safetensors")):
        old, new = path.read_bytes(), (folder / path.name).read_bytes()
        begin = 8 + int.from_bytes(old[:8], "little")
        assert len(old) == len(new) and old[:begin] == new[:begin], f"{path.name}: another layout"
        for name, entry in json.loads(old[8:begin]).items():
            if name == "__metadata__":
                continue
            first, last = (begin + offset for offset in entry["data_offsets"])
            if name in tensors:
                found.add(name)
            else:
                assert old[first:last] == new[first:last], f"{name}: other bytes"
    assert found == set(tensors), f"not in the trunk's files: {sorted(set(tensors) - found)}"


def save_head(head, folder):
    """A folder of an EAGLE-3 head, as it is published."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
             "qk_rope_head_dim", "v_head_dim", "intermediate_size", "rms_norm_eps", "rope_theta", "max_position_embeddings")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "dtype": "bfloat16",
        **{name: getattr(config, name) for name in sizes},
        "draft_vocab_size": len(head.d2t), "num_key_value_heads": config.num_attention_heads, "hidden_act": "silu",
        "rope_interleave": True, "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": False, "fc_norm": True,
        "norm_output": False, "eagle_config": {"eagle_aux_hidden_state_layer_ids": head.wanted_layers, "use_aux_hidden_state": True},
    }, indent=2) + "\n")
    tensors = {name: value.cpu() if name == "d2t" else value.detach().cpu().bfloat16() for name, value in head.state_dict().items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load(folder, device="cpu", config=None):
    """The folder's model with float32 parameters. With a config that has indexers where the folder has none: those are new."""
    folder = pathlib.Path(folder)
    model = model_lib.Model(config or read_config(folder))
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(file)
    state = {}
    for name, value in model.state_dict().items():
        if config and ".indexer." in name:
            state[name] = value
            continue
        head, _, part = name.rpartition(".experts.")
        if part in EXPERT_PARTS:
            stored = torch.stack([tensors.pop(f"model.{head}.experts.{i}.{part}.weight") for i in range(len(value))])
        else:
            stored = tensors.pop("model." + name)
        state[name] = stored.float()
    assert not tensors, f"{folder}: unknown tensors {sorted(tensors)}"
    model.load_state_dict(state)
    return model.to(device)
