//! Which model, where and in which form.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::{Device, Dtype};

/// The target and where it runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Folder with config.json, tokenizer.json and safetensors files [default: the bundled pair]
    #[arg(long, alias = "model", value_name = "DIR")]
    pub model_path: Option<PathBuf>,

    /// Device; `auto` takes the GPU when there is one
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceName,

    /// Storage of weights and KV; `auto` is the device's own choice (CPU: f32)
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DtypeName,
}

/// Values of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The GPU when there is one, else the CPU
    Auto,
    /// The CPU
    Cpu,
    /// The GPU
    Cuda,
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

impl ModelArgs {
    /// The device asked for.
    pub fn device(&self) -> Device {
        match self.device {
            DeviceName::Auto => Device::Auto,
            DeviceName::Cpu => Device::Cpu,
            DeviceName::Cuda => Device::Cuda,
        }
    }

    /// The storage asked for; `None` = the device's own choice.
    pub fn dtype(&self) -> Option<Dtype> {
        match self.dtype {
            DtypeName::Auto => None,
            DtypeName::F32 => Some(Dtype::F32),
            DtypeName::Bf16 => Some(Dtype::Bf16),
        }
    }
}
