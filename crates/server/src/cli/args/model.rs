//! Which model, from where, in which form.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::{Device, Dtype, LoadFormat};

/// The target and where it runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Folder with config.json, tokenizer.json and safetensors files, or a name on the Hugging Face
    /// hub: org/name or org/name@revision [default: the bundled pair]
    #[arg(long, alias = "model", value_name = "DIR|NAME")]
    pub model_path: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// auto, cpu, cuda or cuda:N; `auto` takes the GPU when there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device)]
    pub device: Device,

    /// Storage of weights and KV; `auto` is the device's own choice (CPU: f32, GPU: bf16)
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DtypeName,

    /// Enqueue every op of every step by itself instead of launching recorded steps, to debug or
    /// profile; the CPU records nothing anyway
    #[arg(long)]
    pub disable_cuda_graph: bool,

    /// Where weights come from
    #[arg(long, value_enum, default_value = "auto")]
    pub load_format: LoadFormatName,

    /// Seed of dummy weights
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub load_seed: u64,
}

/// How models are found by name.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct HubArgs {
    /// Take models named org/name from the local cache only, as with HF_HUB_OFFLINE=1
    #[arg(long)]
    pub offline: bool,
}

/// Values of `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DtypeName {
    /// The device's own choice
    Auto,
    /// 32-bit floats
    #[value(alias = "float32", alias = "float")]
    F32,
    /// Brain floats
    #[value(alias = "bfloat16")]
    Bf16,
}

/// Values of `--load-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadFormatName {
    /// Safetensors files
    Auto,
    /// Safetensors files
    Safetensors,
    /// Random numbers of the right sizes, for timing: only config.json is needed
    Dummy,
}

impl ModelArgs {
    /// The storage asked for; `None` = the device's own choice.
    pub fn dtype(&self) -> Option<Dtype> {
        match self.dtype {
            DtypeName::Auto => None,
            DtypeName::F32 => Some(Dtype::F32),
            DtypeName::Bf16 => Some(Dtype::Bf16),
        }
    }

    /// Whether weights are random.
    pub fn is_dummy(&self) -> bool {
        matches!(self.format(), LoadFormat::Dummy { .. })
    }

    /// The engine's form.
    pub fn format(&self) -> LoadFormat {
        match self.load_format {
            LoadFormatName::Auto | LoadFormatName::Safetensors => LoadFormat::Safetensors,
            LoadFormatName::Dummy => LoadFormat::Dummy {
                seed: self.load_seed,
            },
        }
    }
}

fn device(text: &str) -> Result<Device, String> {
    let expected = || "expected auto, cpu, cuda or cuda:N, as in cuda:0".to_owned();
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Device::Auto),
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        text => {
            let ordinal = text.strip_prefix("cuda:").ok_or_else(expected)?;
            ordinal.parse().map(Device::Cuda).map_err(|_| expected())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_and_gpus_numbers() {
        assert_eq!(device("AUTO").unwrap(), Device::Auto);
        assert_eq!(device("cpu").unwrap(), Device::Cpu);
        assert_eq!(device("cuda").unwrap(), Device::Cuda(0));
        assert_eq!(device("cuda:3").unwrap(), Device::Cuda(3));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda3", "cpu:0"] {
            assert!(device(wrong).unwrap_err().contains("cuda:N"), "{wrong}");
        }
    }
}
