//! Weights as files hold them: pieces that follow each other in a buffer, converted on the way.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::{Cpu, Dtype, OpsError, Storage};

/// Bytes that several threads can read from anywhere at once.
pub trait ReadAt: Sync {
    /// Reads from byte `offset` on until `out` is full.
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OpsError>;
}

/// Bytes in memory.
impl ReadAt for &[u8] {
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OpsError> {
        out.copy_from_slice(&self[offset..offset + out.len()]);
        Ok(())
    }
}

/// Consecutive little-endian numbers in a file.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The file.
    pub source: &'a dyn ReadAt,
    /// Byte at which they begin; need not be aligned.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// How each is stored.
    pub dtype: Dtype,
}

impl<'a> Piece<'a> {
    /// Numbers `first` to `first + len`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(self, first: usize, len: usize) -> Piece<'a> {
        assert!(
            first.checked_add(len).is_some_and(|end| end <= self.len),
            "numbers {first} and {len} more of a piece of {}",
            self.len
        );
        Piece {
            start: self.start + first * self.dtype.bytes(),
            len,
            ..self
        }
    }

    /// All numbers, widened.
    pub fn to_f32(self) -> Result<Vec<f32>, OpsError> {
        let mut values = vec![0.0_f32; self.len];
        self.write(
            Dtype::F32,
            bytemuck::cast_slice_mut(&mut values),
            &mut Vec::new(),
        )?;
        Ok(values)
    }

    /// The first number that is infinite or not a number, and where it stands.
    pub fn first_not_finite(self) -> Result<Option<(usize, f32)>, OpsError> {
        let found: Vec<Option<(usize, f32)>> = (0..self.len.div_ceil(CHUNK))
            .into_par_iter()
            .map(|chunk| {
                let first = chunk * CHUNK;
                let values = self.part(first, CHUNK.min(self.len - first)).to_f32()?;
                let at = values.iter().position(|value| !value.is_finite());
                Ok(at.map(|at| (first + at, values[at])))
            })
            .collect::<Result<_, OpsError>>()?;
        Ok(found.into_iter().flatten().next())
    }

    /// Writes all numbers as `dtype`, rounded to nearest even. `raw` is room for what the file holds.
    fn write(self, dtype: Dtype, out: &mut [u8], raw: &mut Vec<u8>) -> Result<(), OpsError> {
        if self.dtype == dtype {
            return self.source.read_at(self.start, out);
        }
        raw.resize(self.len * self.dtype.bytes(), 0);
        self.source.read_at(self.start, raw)?;
        match (self.dtype, dtype) {
            (Dtype::F32, Dtype::F16) => each(raw, out, |x| f16(f32::from_le_bytes(x))),
            (Dtype::F32, Dtype::Bf16) => each(raw, out, |x| bf16(f32::from_le_bytes(x))),
            (Dtype::F16, Dtype::F32) => each(raw, out, |x| wide_f16(x).to_le_bytes()),
            (Dtype::F16, Dtype::Bf16) => each(raw, out, |x| bf16(wide_f16(x))),
            (Dtype::Bf16, Dtype::F32) => each(raw, out, |x| wide_bf16(x).to_le_bytes()),
            (Dtype::Bf16, Dtype::F16) => each(raw, out, |x| f16(wide_bf16(x))),
            (Dtype::F32, Dtype::F32) | (Dtype::F16, Dtype::F16) | (Dtype::Bf16, Dtype::Bf16) => {
                unreachable!("equal types are copied")
            }
        }
        Ok(())
    }
}

fn each<const N: usize, const M: usize>(
    from: &[u8],
    to: &mut [u8],
    convert: impl Fn([u8; N]) -> [u8; M],
) {
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<M>().0);
    assert_eq!(from.len(), to.len(), "as many numbers as room for them");
    for (to, from) in to.iter_mut().zip(from) {
        *to = convert(*from);
    }
}

fn f16(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

fn bf16(value: f32) -> [u8; 2] {
    bf16::from_f32(value).to_le_bytes()
}

fn wide_f16(value: [u8; 2]) -> f32 {
    f16::from_le_bytes(value).to_f32()
}

fn wide_bf16(value: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(value)) << 16)
}

/// Pieces one behind the other, of which any part can be made.
pub(crate) struct Joined<'a> {
    pieces: &'a [Piece<'a>],
    /// Numbers in front of each piece, and of all.
    ends: Vec<usize>,
}

impl<'a> Joined<'a> {
    pub(crate) fn new(pieces: &'a [Piece<'a>]) -> Self {
        let mut ends = vec![0];
        ends.extend(pieces.iter().scan(0, |end, piece| {
            *end += piece.len;
            Some(*end)
        }));
        Joined { pieces, ends }
    }

    /// Numbers in all.
    pub(crate) fn len(&self) -> usize {
        self.ends[self.pieces.len()]
    }

    /// Writes the numbers from `first` on as `dtype` until `out` is full. `raw` is scratch.
    pub(crate) fn write(
        &self,
        first: usize,
        dtype: Dtype,
        out: &mut [u8],
        raw: &mut Vec<u8>,
    ) -> Result<(), OpsError> {
        let end = first + out.len() / dtype.bytes();
        let mut out = out;
        let mut at = first;
        let mut index = self.ends.partition_point(|&start| start <= first) - 1;
        while at < end {
            let piece = self.pieces[index];
            let begin = at - self.ends[index];
            let part = piece.part(begin, (piece.len - begin).min(end - at));
            let (here, rest) = out.split_at_mut(part.len * dtype.bytes());
            part.write(dtype, here, raw)?;
            (out, at, index) = (rest, at + part.len, index + 1);
        }
        Ok(())
    }
}

/// Numbers that a thread converts at a time.
const CHUNK: usize = 1 << 20;

/// Fills `storage` with the pieces.
///
/// # Panics
/// If they do not fill it.
pub(crate) fn load_cpu(pieces: &[Piece<'_>], storage: &mut Storage<Cpu>) -> Result<(), OpsError> {
    let dtype = storage.dtype();
    let bytes: &mut [u8] = match storage {
        Storage::F32(values) => bytemuck::cast_slice_mut(values),
        Storage::F16(values) => bytemuck::cast_slice_mut(values),
        Storage::Bf16(values) => bytemuck::cast_slice_mut(values),
    };
    let joined = Joined::new(pieces);
    let room = bytes.len() / dtype.bytes();
    assert_eq!(joined.len(), room, "pieces fill their buffer");
    bytes
        .par_chunks_mut(CHUNK * dtype.bytes())
        .enumerate()
        .try_for_each_init(Vec::new, |raw, (chunk, out)| {
            joined.write(chunk * CHUNK, dtype, out, raw)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    const TYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// Values that need rounding, in the given type, behind one byte that shifts them.
    fn file(dtype: Dtype, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0xAB];
        for &value in values {
            match dtype {
                Dtype::F32 => bytes.extend(value.to_le_bytes()),
                Dtype::F16 => bytes.extend(f16(value)),
                Dtype::Bf16 => bytes.extend(bf16(value)),
            }
        }
        bytes
    }

    fn values(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| (i as f32 * 0.37 - 40.0) * 1.001)
            .collect()
    }

    fn round(dtype: Dtype, value: f32) -> f32 {
        match dtype {
            Dtype::F32 => value,
            Dtype::F16 => half::f16::from_f32(value).to_f32(),
            Dtype::Bf16 => half::bf16::from_f32(value).to_f32(),
        }
    }

    #[test]
    fn every_type_becomes_every_other() {
        let values = values(257);
        for from in TYPES {
            let bytes = file(from, &values);
            let piece = Piece {
                source: &bytes.as_slice(),
                start: 1,
                len: values.len(),
                dtype: from,
            };
            for to in TYPES {
                let mut storage = Storage::zeros(&Cpu::default(), to, values.len()).unwrap();
                load_cpu(&[piece], &mut storage).unwrap();
                let mut found = vec![0.0; values.len()];
                storage.widen_to(0, &mut found);
                for (found, value) in found.iter().zip(&values) {
                    let expected = round(to, round(from, *value));
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{from:?} {to:?} {value}"
                    );
                }
            }
            let expected: Vec<f32> = values.iter().map(|value| round(from, *value)).collect();
            assert_eq!(piece.to_f32().unwrap(), expected);
        }
    }

    #[test]
    fn the_first_number_that_is_none() {
        let mut all = values(2 * CHUNK + 5);
        let first = |all: &[f32]| {
            let bytes = file(Dtype::F32, all);
            let piece = Piece {
                source: &bytes.as_slice(),
                start: 1,
                len: all.len(),
                dtype: Dtype::F32,
            };
            piece.first_not_finite().unwrap()
        };
        assert_eq!(first(&all), None);
        all[2 * CHUNK + 4] = f32::NAN;
        assert_eq!(first(&all).map(|(at, _)| at), Some(2 * CHUNK + 4));
        all[CHUNK] = f32::NEG_INFINITY;
        assert_eq!(first(&all), Some((CHUNK, f32::NEG_INFINITY)));
    }

    #[test]
    fn any_part_of_joined_pieces() {
        let all = values(100);
        let bytes = file(Dtype::F32, &all);
        let whole = Piece {
            source: &bytes.as_slice(),
            start: 1,
            len: all.len(),
            dtype: Dtype::F32,
        };
        // An empty piece between others, and pieces out of order.
        let pieces = [
            whole.part(60, 40),
            whole.part(5, 0),
            whole.part(0, 1),
            whole.part(1, 59),
        ];
        let order: Vec<f32> = [&all[60..], &all[..60]].concat();
        let joined = Joined::new(&pieces);
        assert_eq!(joined.len(), 100);
        for (first, end) in [
            (0, 100),
            (0, 1),
            (39, 42),
            (40, 41),
            (41, 100),
            (99, 100),
            (7, 7),
        ] {
            let mut found = vec![0.0_f32; end - first];
            let out = bytemuck::cast_slice_mut(&mut found);
            joined
                .write(first, Dtype::F32, out, &mut Vec::new())
                .unwrap();
            assert_eq!(found, order[first..end], "{first}..{end}");
        }
    }

    #[test]
    fn a_long_buffer_is_filled_by_all_threads() {
        let count = 2 * CHUNK + 17;
        let bytes = file(Dtype::Bf16, &values(count));
        let piece = Piece {
            source: &bytes.as_slice(),
            start: 1,
            len: count,
            dtype: Dtype::Bf16,
        };
        let cpu = Cpu::default();
        let mut storage = Storage::zeros(&cpu, Dtype::Bf16, count).unwrap();
        cpu.load(&mut (), &[piece], &mut storage).unwrap();
        let Storage::Bf16(found) = &storage else {
            panic!("the type that was asked for");
        };
        assert_eq!(bytemuck::cast_slice::<_, u8>(found), &bytes[1..]);
    }
}
