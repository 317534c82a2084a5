//! Where weights come from.

/// Form of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// Safetensors files of the checkpoint.
    #[default]
    Safetensors,
    /// Random numbers that depend on the seed and the tensor's name; only `config.json` is read.
    Dummy {
        /// The seed.
        seed: u64,
    },
}
