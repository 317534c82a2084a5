//! Weights from files to the device.

use std::io::Write;
use std::time::Instant;

use super::{Cuda, get, gpu};
use crate::{Backend, Cpu, Dtype, MappedFile, Piece, ReadAt, Storage};

/// Bytes of a value that no rounding changes from one type to another by accident.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    // Exponents of f32 and bf16 stay finite.
    (0..bytes)
        .map(|i| next() & if i % 2 == 1 { 0xBF } else { 0xFF })
        .collect()
}

fn bits(storage: &Storage<Cuda>, cuda: &Cuda) -> Vec<u8> {
    match storage {
        Storage::F32(values) => bytemuck::cast_slice(&get(cuda, values)).to_vec(),
        Storage::F16(values) => bytemuck::cast_slice(&get(cuda, values)).to_vec(),
        Storage::Bf16(values) => bytemuck::cast_slice(&get(cuda, values)).to_vec(),
    }
}

fn host_bits(storage: &Storage<Cpu>) -> Vec<u8> {
    match storage {
        Storage::F32(values) => bytemuck::cast_slice(values).to_vec(),
        Storage::F16(values) => bytemuck::cast_slice(values).to_vec(),
        Storage::Bf16(values) => bytemuck::cast_slice(values).to_vec(),
    }
}

#[test]
fn pieces_arrive_as_on_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let mut stages = cuda.stages().unwrap();
    let bytes = noise(40 << 20);
    let file = bytes.as_slice();
    let source: &dyn ReadAt = &file;
    for (from, to, rows, width) in [
        (Dtype::Bf16, Dtype::Bf16, 34, 192),
        (Dtype::Bf16, Dtype::Bf16, 3_000, 5_120),
        (Dtype::F32, Dtype::Bf16, 1_001, 5_123),
        (Dtype::F16, Dtype::Bf16, 77, 4_099),
        (Dtype::F32, Dtype::F32, 1_000, 5_003),
        (Dtype::Bf16, Dtype::F32, 1, 1),
    ] {
        let whole = |start| Piece {
            source,
            start,
            len: rows * width,
            dtype: from,
        };
        // Two parts in turns of eight rows, as gate and up, read from odd places.
        let (gate, up) = (whole(1), whole(3));
        let mut pieces = Vec::new();
        for row in (0..rows).step_by(8) {
            let len = 8.min(rows - row) * width;
            pieces.extend([gate.part(row * width, len), up.part(row * width, len)]);
        }
        let len = 2 * rows * width;
        let mut found = Storage::zeros(&cuda, to, len).unwrap();
        let mut expected = Storage::zeros(&Cpu::default(), to, len).unwrap();
        cuda.load(&mut stages, &pieces, &mut found).unwrap();
        Cpu::default()
            .load(&mut (), &pieces, &mut expected)
            .unwrap();
        assert!(
            bits(&found, &cuda) == host_bits(&expected),
            "{from:?} {to:?} {rows}x{width}"
        );
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_and_the_ring_goes_on() {
    let Some(cuda) = gpu() else { return };
    let mut stages = cuda.stages().unwrap();
    let path = std::env::temp_dir().join(format!("spinney-short-{}", std::process::id()));
    std::fs::write(&path, noise(10 << 20)).unwrap();
    let file = MappedFile::open(&path).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(9 << 20)
        .unwrap();
    let piece = Piece {
        source: &file,
        start: 0,
        len: 5 << 20,
        dtype: Dtype::Bf16,
    };
    let mut storage = Storage::zeros(&cuda, Dtype::Bf16, 5 << 20).unwrap();
    let error = cuda
        .load(&mut stages, &[piece], &mut storage)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot read") && error.contains("spinney-short"),
        "{error}"
    );
    let mut rest = Storage::zeros(&cuda, Dtype::Bf16, 4 << 20).unwrap();
    cuda.load(&mut stages, &[piece.part(0, 4 << 20)], &mut rest)
        .unwrap();
    assert!(bits(&rest, &cuda) == std::fs::read(&path).unwrap()[..8 << 20]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn free_memory_shrinks_by_what_is_allocated() {
    let Some(cuda) = gpu() else { return };
    let before = cuda.memory().unwrap().unwrap();
    let buf = cuda.alloc::<u8>(1 << 30).unwrap();
    let after = cuda.memory().unwrap().unwrap();
    assert!(
        after.free + (1 << 30) <= before.free,
        "{before:?} {after:?}"
    );
    assert_eq!(after.total, before.total);
    drop(buf);
}

/// A file in memory, to see what the pipeline itself can do: SPINNEY_UPLOAD_GIB sets its size.
#[test]
fn upload_rate() {
    let Some(cuda) = gpu() else { return };
    let Some(gib) = std::env::var("SPINNEY_UPLOAD_GIB")
        .ok()
        .and_then(|text| text.parse::<usize>().ok())
    else {
        println!("skipped: SPINNEY_UPLOAD_GIB is not set");
        return;
    };
    let bytes: usize = gib << 30;
    let path = format!("/dev/shm/spinney-upload-{}", std::process::id());
    let mut out = std::fs::File::create(&path).unwrap();
    let block = noise(64 << 20);
    for _ in 0..bytes / block.len() {
        out.write_all(&block).unwrap();
    }
    drop(out);
    let file = MappedFile::open(path.as_ref()).unwrap();
    let mut stages = cuda.stages().unwrap();
    // The shapes of a layer: 34816 x 5120 in turns of eight rows, 5120 x 17408, 16480 x 5120.
    let (hidden, wide) = (5_120, 17_408);
    for (name, rows, part_rows) in [
        ("gate_up", 2 * wide, 8),
        ("down", wide, wide),
        ("in", 16_480, 16_480),
    ] {
        let len = rows * hidden;
        let count = (bytes / 2 / len).min(12);
        let mut target = Storage::zeros(&cuda, Dtype::Bf16, len).unwrap();
        for round in 0..2 {
            let began = Instant::now();
            for index in 0..count {
                let whole = Piece {
                    source: &file,
                    start: 2 * len * index,
                    len,
                    dtype: Dtype::Bf16,
                };
                let pieces: Vec<_> = match part_rows {
                    8 => (0..rows / 16)
                        .flat_map(|g| [g * 8, rows / 2 + g * 8])
                        .map(|row| whole.part(row * hidden, 8 * hidden))
                        .collect(),
                    _ => vec![whole],
                };
                cuda.load(&mut stages, &pieces, &mut target).unwrap();
            }
            let mut last = [half::bf16::ZERO];
            let Storage::Bf16(values) = &target else {
                unreachable!()
            };
            cuda.download(values, len - 1, &mut last).unwrap();
            let seconds = began.elapsed().as_secs_f64();
            let rate = (2 * len * count) as f64 / 1e9 / seconds;
            println!("upload {name} x{count} round {round}: {rate:.1} GB/s");
        }
    }
    std::fs::remove_file(path).unwrap();
}
