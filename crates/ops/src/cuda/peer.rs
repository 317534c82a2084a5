//! Products as cuBLASLt runs them when it is free to choose: what measurements compare ours with.

use std::rc::Rc;

use cudarc::cublaslt::sys;
use half::bf16;

use super::blas::{Blas, Gemm, Search};
use super::buf::{CudaBuf, DevicePtr};
use super::device::Cuda;
use crate::{LinearOut, OpsError, Storage, Tensor};

/// Algorithms of cuBLASLt for one shape of weight and one number of rows.
#[doc(hidden)]
pub struct PeerLinear {
    blas: Rc<Blas>,
    gemm: Gemm,
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
    workspace: CudaBuf<u8>,
}

/// What the library asks for on Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Proposals that it is asked for.
const PROPOSALS: usize = 6;

impl Cuda {
    /// cuBLASLt for `[rows, columns]` by `[outputs, columns]`, into f32 where `wide`.
    #[doc(hidden)]
    pub fn peer_linear(
        &self,
        rows: usize,
        outputs: usize,
        columns: usize,
        wide: bool,
    ) -> Result<PeerLinear, OpsError> {
        let gemm = Gemm {
            rows,
            outputs,
            columns,
            stride: columns,
            out_row: outputs,
            wide,
            add: false,
            x: DevicePtr::NULL,
            weight: DevicePtr::NULL,
            out: DevicePtr::NULL,
            workspace: DevicePtr::NULL,
        };
        let search = Search {
            rows,
            workspace_bytes: WORKSPACE_BYTES,
            splits: true,
            count: PROPOSALS,
        };
        let blas = self.blas()?.ok_or_else(|| {
            OpsError::Device(
                "libcublasLt.so.13 was not found; LD_LIBRARY_PATH has to name its folder".into(),
            )
        })?;
        Ok(PeerLinear {
            algorithms: blas.proposals(&gemm, &search)?,
            workspace: CudaBuf::zeroed(&self.device, WORKSPACE_BYTES)?,
            blas,
            gemm,
        })
    }
}

impl PeerLinear {
    /// Algorithms at hand, the library's favourite first.
    pub fn algorithms(&self) -> usize {
        self.algorithms.len()
    }

    /// Enqueues the product by algorithm number `algorithm`, rows one behind the other.
    ///
    /// # Panics
    /// If the buffers or the weight are not those of the shape, or there is no such algorithm.
    pub fn enqueue(
        &self,
        cuda: &Cuda,
        algorithm: usize,
        x: &CudaBuf<bf16>,
        weight: &Tensor<Cuda>,
        out: LinearOut<'_, Cuda>,
    ) -> Result<(), OpsError> {
        let Gemm {
            rows,
            outputs,
            columns,
            wide,
            ..
        } = self.gemm;
        assert_eq!((weight.rows, weight.columns), (outputs, columns));
        let Storage::Bf16(values) = &weight.storage else {
            return Err(OpsError::Device("the peer takes bf16 weights".into()));
        };
        let out = match (out, wide) {
            (LinearOut::Act(out), false) => out.range(0, rows * outputs),
            (LinearOut::F32(out), true) => out.range(0, rows * outputs),
            _ => panic!("the other type of output"),
        };
        let gemm = Gemm {
            x: x.range(0, rows * columns),
            weight: values.range(0, outputs * columns),
            out,
            workspace: self.workspace.ptr(),
            ..self.gemm
        };
        // SAFETY: the ranges above hold what the sizes say; the workspace is of this size.
        unsafe {
            self.blas
                .run_as(cuda, &gemm, &self.algorithms[algorithm], WORKSPACE_BYTES)
        }
    }
}
