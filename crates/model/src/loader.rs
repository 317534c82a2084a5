//! Brings tensors to the device: out of a checkpoint, or random ones in their place.

use ops::{Backend, Dtype, Fill, FillLaw, FillTarget, Piece, Storage, Tensor, gate_up_rows};

use crate::checkpoint::{Checkpoint, FileTensor};
use crate::{CheckReport, LoadProgress, ModelError};

/// Where tensors come from.
pub(crate) enum Origin<'a, B: Backend> {
    /// A checkpoint, through these stages.
    File {
        checkpoint: Checkpoint,
        stages: &'a mut B::Stages,
    },
    /// A checkpoint of which only names, shapes and types are looked at; nothing goes to the
    /// device.
    Header(Checkpoint),
    /// Random numbers.
    Dummy { seed: u64 },
}

/// Makes device weights of one storage type.
pub(crate) struct Loader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) origin: Origin<'a, B>,
    /// Storage of matrices; vectors are f32.
    pub(crate) dtype: Dtype,
    pub(crate) progress: &'a LoadProgress,
}

/// A matrix `[rows, columns]` that was taken and may become a part of a larger one.
#[derive(Clone)]
pub(crate) struct Part {
    name: String,
    rows: usize,
    columns: usize,
    /// `None` = there is no file.
    file: Option<FileTensor>,
    /// Its bytes are part of the progress.
    counts: bool,
}

impl Part {
    /// The same values for a second place.
    pub(crate) fn again(&self) -> Part {
        Part {
            counts: false,
            ..self.clone()
        }
    }
}

/// What a vector is, which decides about its dummy values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Vector {
    /// A norm's factor, of which the checkpoint stores the value less this.
    Norm(f32),
    /// `A_log`: the decay is `exp(-exp(A_log) softplus(..))`.
    DecayLog,
    /// `dt_bias`, added to the argument of that softplus.
    DecayBias,
    /// Weights of the causal convolution, four per channel.
    Convolution,
}

impl Vector {
    fn add(self) -> f32 {
        match self {
            Vector::Norm(add) => add,
            Vector::DecayLog | Vector::DecayBias | Vector::Convolution => 0.0,
        }
    }

    /// Values that keep activations at unit scale, and decays where trained ones are.
    fn law(self) -> FillLaw {
        let normal = |mean, deviation| FillLaw::Normal { mean, deviation };
        match self {
            Vector::Norm(_) => FillLaw::Constant(1.0),
            Vector::DecayLog => FillLaw::LogUniform {
                low: 1.0,
                high: 16.0,
            },
            Vector::DecayBias => normal(-1.0, 1.0),
            Vector::Convolution => normal(0.0, 0.5),
        }
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Takes a matrix that a checkpoint may have and nothing is made of.
    pub(crate) fn leave(
        &mut self,
        name: String,
        rows: usize,
        columns: usize,
    ) -> Result<(), ModelError> {
        let exists = match &self.origin {
            Origin::File { checkpoint, .. } | Origin::Header(checkpoint) => checkpoint.has(&name),
            Origin::Dummy { .. } => false,
        };
        if exists && let Some(file) = self.file(&name, &[rows, columns])? {
            self.progress.add(file.bytes());
        }
        Ok(())
    }

    fn file(&mut self, name: &str, shape: &[usize]) -> Result<Option<FileTensor>, ModelError> {
        match &mut self.origin {
            Origin::File { checkpoint, .. } | Origin::Header(checkpoint) => {
                checkpoint.take(name, shape).map(Some)
            }
            Origin::Dummy { .. } => Ok(None),
        }
    }

    /// Takes a matrix.
    pub(crate) fn take(
        &mut self,
        name: String,
        rows: usize,
        columns: usize,
    ) -> Result<Part, ModelError> {
        Ok(Part {
            file: self.file(&name, &[rows, columns])?,
            name,
            rows,
            columns,
            counts: true,
        })
    }

    /// Takes a matrix that stays alone.
    pub(crate) fn matrix(
        &mut self,
        name: String,
        rows: usize,
        columns: usize,
    ) -> Result<Tensor<B>, ModelError> {
        let part = self.take(name, rows, columns)?;
        self.stacked(&[part])
    }

    /// Matrices `[out_i, in]` stacked along their outputs.
    pub(crate) fn stacked(&mut self, parts: &[Part]) -> Result<Tensor<B>, ModelError> {
        let pieces: Vec<Piece<'_>> = parts.iter().filter_map(whole).collect();
        self.tensor(parts, &pieces)
    }

    /// Gate and up projection, their outputs interleaved as [`ops::LinearSwiglu`] wants them.
    pub(crate) fn gate_up(&mut self, gate: Part, up: Part) -> Result<Tensor<B>, ModelError> {
        let parts = [gate, up];
        let pieces = match (whole(&parts[0]), whole(&parts[1])) {
            (Some(gate), Some(up)) => interleaved(gate, up, parts[0].rows, parts[0].columns),
            _ => Vec::new(),
        };
        self.tensor(&parts, &pieces)
    }

    /// A matrix with the outputs of all parts, in the order of `pieces`.
    fn tensor(&mut self, parts: &[Part], pieces: &[Piece<'_>]) -> Result<Tensor<B>, ModelError> {
        let columns = parts[0].columns;
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let backend = self.backend;
        let zeros = |rows| Storage::zeros(backend, self.dtype, rows * columns);
        let mut storage = match &self.origin {
            Origin::Header(_) => zeros(0)?,
            Origin::File { .. } | Origin::Dummy { .. } => zeros(rows)?,
        };
        let bytes = match &mut self.origin {
            Origin::Header(_) => 0,
            Origin::File { stages, .. } => {
                backend.load(stages, pieces, &mut storage)?;
                let counted = parts.iter().filter(|part| part.counts);
                let files = counted.filter_map(|part| part.file.as_ref());
                files.map(FileTensor::bytes).sum()
            }
            Origin::Dummy { seed } => {
                backend.fill(Fill {
                    values: FillTarget::from(&mut storage),
                    law: FillLaw::Normal {
                        mean: 0.0,
                        deviation: (columns as f32).sqrt().recip(),
                    },
                    seed: *seed,
                    name: &parts[0].name,
                })?;
                (rows * columns * self.dtype.bytes()) as u64
            }
        };
        self.progress.add(bytes);
        Ok(Tensor {
            storage,
            rows,
            columns,
        })
    }

    /// Takes a vector, always f32 on the device.
    pub(crate) fn vector(
        &mut self,
        name: String,
        shape: &[usize],
        kind: Vector,
    ) -> Result<B::Buf<f32>, ModelError> {
        let file = self.file(&name, shape)?;
        let (backend, len) = (self.backend, shape.iter().product());
        match (&self.origin, file) {
            (Origin::Header(_), _) => Ok(backend.alloc(0)?),
            (Origin::Dummy { seed }, _) => {
                let mut values = backend.alloc(len)?;
                backend.fill(Fill {
                    values: FillTarget::F32(&mut values),
                    law: kind.law(),
                    seed: *seed,
                    name: &name,
                })?;
                self.progress.add((len * size_of::<f32>()) as u64);
                Ok(values)
            }
            (Origin::File { .. }, Some(file)) => {
                let mut values = file.piece().to_f32()?;
                let add = kind.add();
                values.iter_mut().for_each(|value| *value += add);
                self.progress.add(file.bytes());
                self.upload(&values)
            }
            (Origin::File { .. }, None) => unreachable!("a checkpoint gives what it has"),
        }
    }

    /// Puts computed values on the device.
    pub(crate) fn upload(&self, values: &[f32]) -> Result<B::Buf<f32>, ModelError> {
        let mut buf = self.backend.alloc(values.len())?;
        self.backend.upload(values, &mut buf, 0)?;
        Ok(buf)
    }

    /// Ends the loading: of a checkpoint nothing may be left.
    pub(crate) fn finish(self) -> Result<CheckReport, ModelError> {
        match self.origin {
            Origin::File { checkpoint, .. } | Origin::Header(checkpoint) => checkpoint.finish(),
            Origin::Dummy { .. } => Ok(CheckReport::default()),
        }
    }
}

/// All values of a part, where there is a file.
fn whole(part: &Part) -> Option<Piece<'_>> {
    Some(part.file.as_ref()?.piece())
}

/// Groups of gate rows, each in front of the same rows of up.
fn interleaved<'p>(
    gate: Piece<'p>,
    up: Piece<'p>,
    intermediate: usize,
    columns: usize,
) -> Vec<Piece<'p>> {
    let mut pieces = Vec::new();
    let mut first = 0;
    while first < intermediate {
        let (gate_row, up_row) = gate_up_rows(first, intermediate);
        let rows = up_row - gate_row;
        let (at, len) = (first * columns, rows * columns);
        pieces.extend([gate.part(at, len), up.part(at, len)]);
        first += rows;
    }
    pieces
}
