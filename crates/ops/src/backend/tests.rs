//! Copies, on whatever backend.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::Cpu;

/// Copies within the device and through host memory, of all places and lengths.
pub(crate) fn check_copies<B: Backend>(backend: &B) {
    for len in [1, 63, 1 << 12, 1 << 20] {
        let values: Vec<u32> = (0..len as u32)
            .map(|i| i.wrapping_mul(2_654_435_761))
            .collect();
        let mut source = backend.alloc::<u32>(len).unwrap();
        backend.upload(&values, &mut source, 0).unwrap();
        let allocated = backend.allocated_bytes();
        let mut host = backend.alloc_host::<u32>(2 * len + 5).unwrap();
        assert_eq!(backend.allocated_bytes(), allocated, "host memory counts");
        let mut target = backend.alloc::<u32>(len + 7).unwrap();
        for (from, to, count) in [(0, 0, len), (len / 3, 7, len - len / 3), (0, len + 7, 0)] {
            let mut expected = vec![0; len + 7];
            expected[to..to + count].copy_from_slice(&values[from..from + count]);
            let mut read = vec![1; len + 7];

            backend.zero(&mut target, 0, len + 7).unwrap();
            backend.copy(&source, from, &mut target, to, count).unwrap();
            backend.download(&target, 0, &mut read).unwrap();
            assert_eq!(read, expected, "{count} of {len} from {from} to {to}");

            backend.zero(&mut target, 0, len + 7).unwrap();
            let place = len + 5 - count.min(5);
            backend
                .copy_to_host(&source, from, &mut host, place, count)
                .unwrap();
            backend
                .copy_from_host(&host, place, &mut target, to, count)
                .unwrap();
            backend.download(&target, 0, &mut read).unwrap();
            assert_eq!(read, expected, "{count} of {len} through the host");
        }
        let beyond = catch_unwind(AssertUnwindSafe(|| {
            backend.copy(&source, 1, &mut target, 0, len)
        }));
        assert!(beyond.is_err(), "the source ends before");
        let beyond = catch_unwind(AssertUnwindSafe(|| {
            backend.copy_to_host(&source, 0, &mut host, len + 6, len)
        }));
        assert!(beyond.is_err(), "the host's memory ends before");
    }
    let nothing = backend.alloc_host::<f32>(0).unwrap();
    let mut target = backend.alloc::<f32>(3).unwrap();
    backend
        .copy_from_host(&nothing, 0, &mut target, 3, 0)
        .unwrap();
}

#[test]
fn copies_on_the_cpu() {
    check_copies(&Cpu::default());
}
