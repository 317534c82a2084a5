//! Buffers, copies, kernels and graphs.

use super::{get, gpu, only_small, put};
use crate::Backend;
use crate::cuda::buf::DevicePtr;
use crate::cuda::kernel::{Entry, Grid};

#[derive(Clone, Copy)]
#[repr(C)]
struct ProbeParams {
    values: DevicePtr,
    len: u32,
}

const PROBE: Entry = Entry {
    module: "probe",
    name: "probe_add_one",
};

fn add_one(cuda: &crate::Cuda, values: &crate::cuda::CudaBuf<u32>) {
    let params = ProbeParams {
        values: values.ptr(),
        len: values.len() as u32,
    };
    let grid = Grid {
        blocks: [values.len().div_ceil(256) as u32, 1, 1],
        threads: 256,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/probe.cu; `values` has `len` values.
    unsafe { cuda.run(&PROBE, grid, params) }.unwrap();
}

/// Between buffers, and through page-locked host memory.
#[test]
fn copies_between_buffers_land_where_they_should() {
    let Some(cuda) = gpu() else { return };
    crate::backend::tests::check_copies(&cuda);
}

#[test]
fn copies_land_where_they_should() {
    let Some(cuda) = gpu() else { return };
    println!("{}", cuda.name());
    for len in [1, 63, 1 << 10, 1 << 18] {
        let mut buf = cuda.alloc::<u32>(len).unwrap();
        assert!(
            get(&cuda, &buf).iter().all(|&value| value == 0),
            "fresh memory is zero"
        );
        let values: Vec<u32> = (0..len as u32)
            .map(|i| i.wrapping_mul(2_654_435_761))
            .collect();
        cuda.upload(&values, &mut buf, 0).unwrap();
        assert_eq!(get(&cuda, &buf), values);
        cuda.zero(&mut buf, len / 2, len - len / 2).unwrap();
        cuda.upload(&[7], &mut buf, len - 1).unwrap();
        let mut last = [0];
        cuda.download(&buf, len - 1, &mut last).unwrap();
        assert_eq!(last, [7]);
        assert_eq!(get(&cuda, &buf)[..len / 2], values[..len / 2]);
    }
    let before = cuda.allocated_bytes();
    let _more = cuda.alloc::<u64>(1000).unwrap();
    assert_eq!(cuda.allocated_bytes() - before, 8000);
}

#[test]
fn kernels_run_in_order_and_graphs_repeat_them() {
    let Some(cuda) = gpu() else { return };
    let values = put(&cuda, &vec![5u32; 100_000]);
    for _ in 0..10 {
        add_one(&cuda, &values);
    }
    assert!(get(&cuda, &values).iter().all(|&value| value == 15));
    let graph = cuda
        .record(&mut || {
            for _ in 0..20 {
                add_one(&cuda, &values);
            }
            Ok(())
        })
        .unwrap()
        .expect("CUDA has graphs");
    assert!(
        get(&cuda, &values).iter().all(|&value| value == 15),
        "recording runs nothing"
    );
    let launches = if only_small() { 2 } else { 50 };
    for _ in 0..launches {
        cuda.launch(&graph).unwrap();
    }
    let sum = 15 + 20 * launches;
    assert!(get(&cuda, &values).iter().all(|&value| value == sum));
}

#[test]
fn a_failed_recording_leaves_the_device_usable() {
    let Some(cuda) = gpu() else { return };
    let values = put(&cuda, &[1u32; 256]);
    let error = cuda
        .record(&mut || Err(crate::OpsError::Device("as planned".into())))
        .unwrap_err();
    assert_eq!(error.to_string(), "as planned");
    add_one(&cuda, &values);
    assert!(get(&cuda, &values).iter().all(|&value| value == 2));
}

#[test]
fn too_much_memory_is_an_error_with_its_size() {
    let Some(cuda) = gpu() else { return };
    let error = cuda.alloc::<u8>(1 << 42).unwrap_err().to_string();
    assert!(error.contains("4398046511104"), "{error}");
    let small = put(&cuda, &[1u32, 2]);
    assert_eq!(get(&cuda, &small), [1, 2], "the device still works");
}
