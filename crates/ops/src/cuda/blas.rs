//! Matrix products of cuBLASLt.
//!
//! A weight has one algorithm, the library's first choice for a fixed number of rows among those
//! that do not split K: a row's bits do not depend on how many rows there are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use cudarc::cublaslt::sys::cudaDataType_t::{CUDA_R_16BF, CUDA_R_32F};

use super::buf::DevicePtr;
use super::device::Cuda;
use crate::OpsError;

/// `out[r, o] = sum_k x[r, k] weight[o, k]` over `columns` columns of rows of `stride` values, all
/// in bf16 but for `out` where `wide`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) columns: usize,
    /// Values from row to row of x and of the weight.
    pub(super) stride: usize,
    /// Values from row to row of `out`.
    pub(super) out_row: usize,
    /// `out` is f32.
    pub(super) wide: bool,
    /// The product is added to what `out` holds.
    pub(super) add: bool,
    pub(super) x: DevicePtr,
    pub(super) weight: DevicePtr,
    pub(super) out: DevicePtr,
    /// [`WORKSPACE_BYTES`].
    pub(super) workspace: DevicePtr,
}

/// Memory that an algorithm may use.
pub(super) const WORKSPACE_BYTES: usize = 4 << 20;

/// Matrices start at multiples of this.
const ALIGNMENT_BYTES: u32 = 16;

/// Rows for which algorithms are chosen.
const CHOICE_ROWS: usize = 2048;

/// What an algorithm depends on.
type Key = [usize; 5];

/// What a search for algorithms may propose.
pub(super) struct Search {
    /// Rows of x.
    pub(super) rows: usize,
    pub(super) workspace_bytes: usize,
    /// Whether K may be split between blocks.
    pub(super) splits: bool,
    /// Proposals at most.
    pub(super) count: usize,
}

/// The opened library.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    product: sys::cublasLtMatmulDesc_t,
    algorithms: RefCell<HashMap<Key, sys::cublasLtMatmulAlgo_t>>,
}

impl Blas {
    /// Opens the library for the context that is bound; `None` if this machine has none.
    pub(super) fn open() -> Result<Option<Self>, OpsError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let product = result::create_matmul_desc(compute, CUDA_R_32F).map_err(blas_error)?;
        let transpose = 1i32;
        // SAFETY: the weight is the library's first matrix, whose rows are our columns.
        unsafe {
            result::set_matmul_desc_attribute(
                product,
                CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transpose).cast(),
                size_of::<i32>(),
            )
        }
        .map_err(blas_error)?;
        Ok(Some(Blas {
            handle: result::create_handle().map_err(blas_error)?,
            product,
            algorithms: RefCell::default(),
        }))
    }

    /// Enqueues a product.
    ///
    /// # Safety
    /// The pointers are valid for what the sizes say.
    pub(super) unsafe fn run(&self, cuda: &Cuda, gemm: &Gemm) -> Result<(), OpsError> {
        let algorithm = self.algorithm(gemm)?;
        // SAFETY: the caller's; the workspace is of this size.
        unsafe { self.run_as(cuda, gemm, &algorithm, WORKSPACE_BYTES) }
    }

    /// Enqueues a product by an algorithm that was proposed for it.
    ///
    /// # Safety
    /// The pointers are valid for what the sizes say; `gemm.workspace` for `workspace_bytes`.
    pub(super) unsafe fn run_as(
        &self,
        cuda: &Cuda,
        gemm: &Gemm,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        workspace_bytes: usize,
    ) -> Result<(), OpsError> {
        let layouts = Layouts::of(gemm, gemm.rows)?;
        let (one, kept) = (1.0f32, if gemm.add { 1.0f32 } else { 0.0 });
        // SAFETY: shapes are those of the layouts; the caller vouches for the pointers.
        unsafe {
            result::matmul(
                self.handle,
                self.product,
                (&raw const one).cast(),
                (&raw const kept).cast(),
                gemm.weight.0 as *const c_void,
                layouts.weight.0,
                gemm.x.0 as *const c_void,
                layouts.x.0,
                gemm.out.0 as *const c_void,
                layouts.out.0,
                gemm.out.0 as *mut c_void,
                layouts.out.0,
                algorithm,
                gemm.workspace.0 as *mut c_void,
                workspace_bytes,
                cuda.device.stream.cu_stream().cast(),
            )
        }
        .map_err(|error| named(gemm, error))
    }

    fn algorithm(&self, gemm: &Gemm) -> Result<sys::cublasLtMatmulAlgo_t, OpsError> {
        let key = [
            gemm.outputs,
            gemm.columns,
            gemm.stride,
            gemm.out_row,
            usize::from(gemm.wide),
        ];
        if let Some(known) = self.algorithms.borrow().get(&key) {
            return Ok(*known);
        }
        let search = Search {
            rows: CHOICE_ROWS,
            workspace_bytes: WORKSPACE_BYTES,
            splits: false,
            count: 1,
        };
        let chosen = self.proposals(gemm, &search)?[0];
        self.algorithms.borrow_mut().insert(key, chosen);
        Ok(chosen)
    }

    /// Algorithms for a product, at least one, the library's favourite first.
    pub(super) fn proposals(
        &self,
        gemm: &Gemm,
        search: &Search,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, OpsError> {
        let found = self.search(gemm, search);
        found.map_err(|error| named(gemm, error))
    }

    fn search(
        &self,
        gemm: &Gemm,
        search: &Search,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CublasError> {
        let preference = preference(search)?;
        let layouts = Layouts::of_library(gemm, search.rows)?;
        let mut found = Vec::with_capacity(search.count);
        let mut count = 0;
        // SAFETY: all arguments are alive; the library writes `count` results, at most as many as
        // there is room for.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.product,
                layouts.weight.0,
                layouts.x.0,
                layouts.out.0,
                layouts.out.0,
                preference.0,
                search.count as i32,
                found.as_mut_ptr(),
                &mut count,
            )
            .result()?;
            found.set_len(count as usize);
        }
        let fit: Vec<_> = found
            .into_iter()
            .filter(|result: &sys::cublasLtMatmulHeuristicResult_t| result.state.result().is_ok())
            .map(|result| result.algo)
            .collect();
        match fit.is_empty() {
            true => Err(CublasError(
                sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            )),
            false => Ok(fit),
        }
    }
}

fn preference(search: &Search) -> Result<PreferenceGuard, CublasError> {
    let preference = PreferenceGuard(result::create_matmul_pref()?);
    let bytes = search.workspace_bytes as u64;
    // SAFETY: the attribute is of this type.
    unsafe {
        result::set_matmul_pref_attribute(
            preference.0,
            Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            (&raw const bytes).cast(),
            size_of::<u64>(),
        )?;
    }
    let schemes = match search.splits {
        true => sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK as u32,
        false => sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32,
    };
    for (attribute, value) in [
        (
            Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            schemes,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            ALIGNMENT_BYTES,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            ALIGNMENT_BYTES,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            ALIGNMENT_BYTES,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ALIGNMENT_BYTES,
        ),
    ] {
        // SAFETY: these attributes are 32-bit integers.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                attribute,
                (&raw const value).cast(),
                size_of::<u32>(),
            )?;
        }
    }
    Ok(preference)
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once. A failure leaves nothing to be done.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

struct PreferenceGuard(sys::cublasLtMatmulPreference_t);

impl Drop for PreferenceGuard {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

struct Layout(sys::cublasLtMatrixLayout_t);

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// The matrices as the library sees them: column by column, so that each is transposed.
struct Layouts {
    weight: Layout,
    x: Layout,
    out: Layout,
}

impl Layouts {
    fn of(gemm: &Gemm, rows: usize) -> Result<Self, OpsError> {
        Self::of_library(gemm, rows).map_err(blas_error)
    }

    fn of_library(gemm: &Gemm, rows: usize) -> Result<Self, CublasError> {
        let layout = |dtype, rows, columns, stride| {
            result::create_matrix_layout(dtype, rows as u64, columns as u64, stride as i64)
                .map(Layout)
        };
        let out = if gemm.wide { CUDA_R_32F } else { CUDA_R_16BF };
        Ok(Layouts {
            weight: layout(CUDA_R_16BF, gemm.columns, gemm.outputs, gemm.stride)?,
            x: layout(CUDA_R_16BF, gemm.columns, rows, gemm.stride)?,
            out: layout(out, gemm.outputs, rows, gemm.out_row)?,
        })
    }
}

fn blas_error(error: CublasError) -> OpsError {
    OpsError::Device(format!("cuBLASLt: {error}"))
}

fn named(gemm: &Gemm, error: CublasError) -> OpsError {
    OpsError::Device(format!(
        "cuBLASLt, {} rows by {} x {}: {error}",
        gemm.rows, gemm.outputs, gemm.columns
    ))
}
