//! What the loader takes and what it refuses, from small changes to the random pair.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{CheckpointSource, ModelError, check};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

/// A checkpoint in host memory, to be changed and written.
struct Checkpoint {
    config: Value,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn zeros(shape: &[usize]) -> Self {
        Tensor {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes: vec![0; 4 * shape.iter().product::<usize>()],
        }
    }
}

impl Checkpoint {
    fn fixture(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let read = |file: &str| std::fs::read(folder.join(name).join(file)).unwrap();
        let weights = read("model.safetensors");
        let file = safetensors::SafeTensors::deserialize(&weights).unwrap();
        let tensor = |view: TensorView<'_>| Tensor {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Checkpoint {
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            tensors: file
                .iter()
                .map(|(name, view)| (name.to_owned(), tensor(view)))
                .collect(),
        }
    }

    fn target() -> Self {
        Checkpoint::fixture("qwen3_5")
    }

    fn drafter() -> Self {
        Checkpoint::fixture("dflash")
    }

    fn write(&self) -> Folder {
        let folder = Folder::new();
        folder.put("config.json", self.config.to_string().as_bytes());
        write_tensors(&self.tensors, &folder.path("model.safetensors"));
        folder
    }

    /// Two files and their index.
    fn write_sharded(&self) -> Folder {
        let folder = Folder::new();
        folder.put("config.json", self.config.to_string().as_bytes());
        let mut parts = [BTreeMap::new(), BTreeMap::new()];
        let mut places = serde_json::Map::new();
        for (number, (name, tensor)) in self.tensors.iter().enumerate() {
            parts[number % 2].insert(name.clone(), tensor.clone());
            places.insert(name.clone(), json!(shard(number % 2)));
        }
        for (number, part) in parts.iter().enumerate() {
            write_tensors(part, &folder.path(shard(number)));
        }
        let index = json!({"metadata": {}, "weight_map": places});
        folder.put("model.safetensors.index.json", index.to_string().as_bytes());
        folder
    }

    fn rename(&mut self, new_name: impl Fn(&str) -> String) {
        self.tensors = std::mem::take(&mut self.tensors)
            .into_iter()
            .map(|(name, tensor)| (new_name(&name), tensor))
            .collect();
    }
}

fn shard(number: usize) -> &'static str {
    ["model-1-of-2.safetensors", "model-2-of-2.safetensors"][number]
}

fn write_tensors(tensors: &BTreeMap<String, Tensor>, path: &Path) {
    let views = tensors.iter().map(|(name, tensor)| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (name, view.unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn put(&self, file: &str, bytes: &[u8]) {
        std::fs::write(self.path(file), bytes).unwrap();
    }

    fn source(&self) -> CheckpointSource {
        CheckpointSource::Folder(self.0.path().to_owned())
    }

    fn error(&self) -> ModelError {
        check(&self.source(), None).expect_err("the checkpoint has a fault")
    }
}

/// The error names the file, and everything in `parts`.
#[track_caller]
fn says(error: &ModelError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "expected {part:?} in: {text}");
    }
}

/// Changes the target's config and reads the message.
#[track_caller]
fn config_error(change: impl FnOnce(&mut Value), parts: &[&str]) {
    let mut target = Checkpoint::target();
    change(&mut target.config);
    let error = target.write().error();
    says(&error, &["config.json"]);
    says(&error, parts);
}

/// Changes the drafter's config and reads the message.
#[track_caller]
fn drafter_error(change: impl FnOnce(&mut Value), parts: &[&str]) {
    let mut drafter = Checkpoint::drafter();
    change(&mut drafter.config);
    let (target, drafter) = (Checkpoint::target().write(), drafter.write());
    let error = check(&target.source(), Some(&drafter.source())).unwrap_err();
    says(&error, parts);
}

#[test]
fn both_layouts_and_both_prefixes() {
    let plain = Checkpoint::target();
    let count = plain.tensors.len();
    let report = check(&plain.write().source(), None).unwrap().0;
    assert_eq!((report.tensors, report.skipped), (count, 0));
    let values: usize = plain
        .tensors
        .values()
        .map(|t| t.shape.iter().product::<usize>())
        .sum();
    assert_eq!(report.values, values as u64);

    let mut wrapped = Checkpoint::target();
    wrapped.rename(|name| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    });
    wrapped.config["model_type"] = json!("qwen3_5_text");
    wrapped.config = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": wrapped.config,
        "vision_config": {"depth": 27},
    });
    wrapped.config["text_config"]
        .as_object_mut()
        .unwrap()
        .remove("architectures");
    for extra in ["model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight"] {
        wrapped.tensors.insert(extra.into(), Tensor::zeros(&[2, 3]));
    }
    let report = check(&wrapped.write().source(), None).unwrap().0;
    assert_eq!((report.tensors, report.skipped), (count, 2));
}

#[test]
fn sharded_as_single() {
    let target = Checkpoint::target();
    let sharded = check(&target.write_sharded().source(), None).unwrap().0;
    assert_eq!(sharded, check(&target.write().source(), None).unwrap().0);
}

#[test]
fn tied_head_with_and_without_a_copy() {
    let mut tied = Checkpoint::target();
    tied.config["tie_word_embeddings"] = json!(true);
    let with = check(&tied.write().source(), None).unwrap().0;
    tied.tensors.remove("lm_head.weight").unwrap();
    let without = check(&tied.write().source(), None).unwrap().0;
    assert_eq!(with.tensors, without.tensors + 1);
}

#[test]
fn a_pair_is_checked_together() {
    let (target, drafter) = (Checkpoint::target().write(), Checkpoint::drafter().write());
    let (_, report) = check(&target.source(), Some(&drafter.source())).unwrap();
    assert_eq!(report.unwrap().tensors, Checkpoint::drafter().tensors.len());
}

#[test]
fn every_tensor_missing_is_named() {
    let names: Vec<String> = Checkpoint::target().tensors.into_keys().collect();
    for name in names {
        let mut target = Checkpoint::target();
        target.tensors.remove(&name);
        let error = target.write().error();
        says(&error, &["model.safetensors", &name, "missing"]);
    }
}

#[test]
fn every_tensor_misshaped_is_named() {
    let names: Vec<String> = Checkpoint::target().tensors.into_keys().collect();
    for name in names {
        let mut target = Checkpoint::target();
        let tensor = target.tensors.get_mut(&name).unwrap();
        let (was, mut wrong) = (format!("{:?}", tensor.shape), tensor.shape.clone());
        wrong[0] += 1;
        *tensor = Tensor::zeros(&wrong);
        let error = target.write().error();
        let found = format!("found {wrong:?}");
        says(
            &error,
            &[
                "model.safetensors",
                &name,
                &found,
                &format!("expected shape {was}"),
            ],
        );
    }
}

#[test]
fn a_transposed_tensor_is_refused() {
    let mut target = Checkpoint::target();
    let name = "model.layers.3.self_attn.o_proj.weight";
    target.tensors.get_mut(name).unwrap().shape.reverse();
    says(
        &target.write().error(),
        &[name, "expected shape [64, 192], found [192, 64]"],
    );
}

#[test]
fn unknown_tensors_are_named() {
    for name in [
        "model.layers.8.mlp.up_proj.weight",
        "model.layers.0.bias",
        "lora.weight",
    ] {
        let mut target = Checkpoint::target();
        target.tensors.insert(name.into(), Tensor::zeros(&[4]));
        says(
            &target.write().error(),
            &["model.safetensors", name, "unknown"],
        );
    }
}

#[test]
fn other_types_are_refused() {
    let mut target = Checkpoint::target();
    let name = "model.layers.0.mlp.up_proj.weight";
    let tensor = target.tensors.get_mut(name).unwrap();
    tensor.dtype = Dtype::I16;
    says(
        &target.write().error(),
        &[name, "expected BF16, F16 or F32, found I16"],
    );
}

#[test]
fn a_tensor_under_both_prefixes_is_refused() {
    let mut target = Checkpoint::target();
    let norm = target.tensors["model.norm.weight"].clone();
    target
        .tensors
        .insert("model.language_model.norm.weight".into(), norm);
    says(&target.write().error(), &["norm.weight", "twice"]);
}

#[test]
fn values_that_are_not_finite_are_found_in_any_tensor_and_type() {
    for (value, shown) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (f32::NEG_INFINITY, "-inf"),
    ] {
        for name in [
            "model.layers.0.linear_attn.A_log",
            "lm_head.weight",
            "model.norm.weight",
        ] {
            let mut target = Checkpoint::target();
            let tensor = target.tensors.get_mut(name).unwrap();
            match tensor.dtype {
                Dtype::F32 => tensor.bytes[8..12].copy_from_slice(&value.to_le_bytes()),
                Dtype::BF16 => tensor.bytes[4..6].copy_from_slice(&value.to_le_bytes()[2..]),
                other => panic!("no fixture tensor is {other:?}"),
            }
            says(
                &target.write().error(),
                &[name, &format!("value 2 is {shown}")],
            );
        }
    }
}

#[test]
fn truncated_files_are_refused_at_every_length() {
    let folder = Checkpoint::target().write();
    let whole = std::fs::read(folder.path("model.safetensors")).unwrap();
    for length in [0, 1, 7, 8, 100, 5_000, whole.len() / 2, whole.len() - 1] {
        folder.put("model.safetensors", &whole[..length]);
        says(
            &folder.error(),
            &["model.safetensors", "not a complete safetensors file"],
        );
    }
    let mut longer = whole.clone();
    longer.push(0);
    folder.put("model.safetensors", &longer);
    says(&folder.error(), &["not a complete safetensors file"]);
    let mut huge = whole;
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    folder.put("model.safetensors", &huge);
    says(&folder.error(), &["not a complete safetensors file"]);
}

#[test]
fn missing_files_are_named() {
    let folder = Checkpoint::target().write_sharded();
    std::fs::remove_file(folder.path(shard(1))).unwrap();
    says(&folder.error(), &[shard(1), "the shard is missing"]);
    let folder = Checkpoint::target().write();
    std::fs::remove_file(folder.path("model.safetensors")).unwrap();
    says(&folder.error(), &["model.safetensors", "found neither"]);
    std::fs::remove_file(folder.path("config.json")).unwrap();
    says(&folder.error(), &["config.json"]);
}

#[test]
fn index_and_shards_must_agree() {
    let target = Checkpoint::target();
    let rewrite = |folder: &Folder, change: &dyn Fn(&mut Value)| {
        let file = "model.safetensors.index.json";
        let text = std::fs::read(folder.path(file)).unwrap();
        let mut index: Value = serde_json::from_slice(&text).unwrap();
        change(&mut index["weight_map"]);
        folder.put(file, index.to_string().as_bytes());
        says(&folder.error(), &[]);
        folder.error()
    };
    let name = "model.norm.weight";
    let error = rewrite(&target.write_sharded(), &|map| {
        map["extra"] = json!(shard(0))
    });
    says(&error, &["index.json", "extra", "does not have it"]);
    let error = rewrite(&target.write_sharded(), &|map| {
        map.as_object_mut().unwrap().remove(name);
    });
    says(&error, &[name, "the index does not place it in this file"]);
    let error = rewrite(&target.write_sharded(), &|map| {
        map[name] = json!("../model.safetensors")
    });
    says(
        &error,
        &["index.json", "not the name of a file in the same folder"],
    );
    let error = rewrite(&target.write_sharded(), &|map| *map = json!({}));
    says(&error, &["weight_map is empty"]);
}

#[test]
fn configurations_of_other_models_are_refused() {
    config_error(
        |c| c["architectures"] = json!(["LlamaForCausalLM"]),
        &["LlamaForCausalLM"],
    );
    config_error(
        |c| c["model_type"] = json!("qwen3"),
        &["model_type", "qwen3"],
    );
    config_error(
        |c| c["rope_parameters"]["rope_type"] = json!("yarn"),
        &[
            "rope_parameters.rope_type",
            "expected default, found \"yarn\"",
        ],
    );
    config_error(
        |c| c["rope_scaling"] = json!({"factor": 4.0}),
        &["rope_scaling"],
    );
    config_error(|c| c["hidden_act"] = json!("gelu"), &["hidden_act", "gelu"]);
    config_error(
        |c| c["attn_output_gate"] = json!(false),
        &["attn_output_gate"],
    );
    config_error(
        |c| c["linear_conv_kernel_dim"] = json!(3),
        &["linear_conv_kernel_dim", "3"],
    );
    config_error(
        |c| c["layer_types"][0] = json!("sliding_attention"),
        &["sliding_attention"],
    );
    config_error(
        |c| c["num_hidden_layers"] = json!(7),
        &["layer_types", "expected 7"],
    );
    config_error(
        |c| c["num_key_value_heads"] = json!(4),
        &["num_attention_heads", "4"],
    );
}

#[test]
fn malformed_configurations_never_panic() {
    let bad = [
        json!(0),
        json!(-1),
        json!(1.5),
        json!("64"),
        json!([]),
        json!(u64::MAX),
    ];
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "vocab_size",
        "max_position_embeddings",
    ];
    for key in sizes {
        for value in &bad {
            config_error(|c| c[key] = value.clone(), &[key]);
        }
        config_error(
            |c| {
                c.as_object_mut().unwrap().remove(key);
            },
            &[key, "found nothing"],
        );
    }
    for value in [json!(0), json!(2.0), json!("x")] {
        config_error(
            |c| c["rope_parameters"]["partial_rotary_factor"] = value.clone(),
            &["partial_rotary_factor"],
        );
    }
    for eps in [-1.0, 2.0] {
        config_error(
            |c| c["rms_norm_eps"] = json!(eps),
            &["rms_norm_eps", "0 to 1"],
        );
    }
    config_error(
        |c| {
            c["rope_parameters"]
                .as_object_mut()
                .unwrap()
                .remove("partial_rotary_factor");
        },
        &["partial_rotary_factor", "found nothing"],
    );
    let folder = Checkpoint::target().write();
    for text in ["", "[]", "{", "null", "\u{feff}{}"] {
        folder.put("config.json", text.as_bytes());
        says(&folder.error(), &["config.json"]);
    }
    folder.put("config.json", b"{\"a\": \"\xff\"}");
    says(&folder.error(), &["config.json"]);
}

#[test]
fn drafters_of_other_targets_are_refused() {
    drafter_error(
        |c| c["hidden_size"] = json!(128),
        &["does not fit", "hidden_size is 128"],
    );
    drafter_error(
        |c| c["vocab_size"] = json!(98),
        &["does not fit", "vocab_size is 98"],
    );
    drafter_error(
        |c| c["num_target_layers"] = json!(12),
        &["does not fit", "num_target_layers"],
    );
    drafter_error(
        |c| c["dflash_config"]["target_layer_ids"] = json!([1, 3, 7]),
        &["does not fit", "target_layer_ids has 7"],
    );
    drafter_error(
        |c| c["dflash_config"]["mask_token_id"] = json!(97),
        &["does not fit", "mask_token_id is 97"],
    );
    drafter_error(
        |c| c["dflash_config"]["target_layer_ids"] = json!([1, 3]),
        &["fc.weight", "expected shape [64, 128], found [64, 192]"],
    );
}

#[test]
fn drafters_of_other_kinds_are_refused() {
    drafter_error(
        |c| c["architectures"] = json!(["Qwen3ForCausalLM"]),
        &["DFlashDraftModel"],
    );
    drafter_error(
        |c| c["selector_rank"] = json!(4),
        &["selector_rank", "another family"],
    );
    drafter_error(|c| c["block_size"] = json!(17), &["block_size", "found 17"]);
    drafter_error(|c| c["block_size"] = json!(1), &["block_size", "found 1"]);
    drafter_error(
        |c| {
            c["dflash_config"]
                .as_object_mut()
                .unwrap()
                .remove("mask_token_id");
        },
        &["mask_token_id", "found nothing"],
    );
    drafter_error(
        |c| c["layer_types"][0] = json!("linear_attention"),
        &["linear_attention"],
    );
}
