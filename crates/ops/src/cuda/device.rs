//! Opening a GPU.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::blas::Blas;
use super::kernel::{LoadedKernels, MODULES};
use super::memory::Pinned;
use super::scratch::Scratch;
use crate::OpsError;

/// What every buffer and kernel of a device shares.
pub(super) struct Device {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) allocated_bytes: AtomicU64,
    /// Major and minor compute capability.
    pub(super) compute: (u32, u32),
    pub(super) multiprocessors: u32,
    /// Whether kernels may start before the one in front of them has ended (sm_90 and later).
    pub(super) overlap: AtomicBool,
}

/// An opened GPU. Clones share its stream.
#[derive(Clone)]
pub struct Cuda {
    pub(super) device: Arc<Device>,
    pub(super) kernels: Rc<RefCell<LoadedKernels>>,
    pub(super) scratch: Rc<RefCell<Option<Scratch>>>,
    /// Small downloads land here, since a copy into ordinary memory takes the driver's slow path.
    pub(super) landing: Rc<RefCell<Pinned>>,
    /// Opened when first used.
    blas: Rc<OnceCell<Option<Rc<Blas>>>>,
    name: String,
}

/// The oldest driver that runs machine code made by the compiler of this build, as the driver
/// counts: 13000 is CUDA 13.0 (driver 580).
const DRIVER_VERSION_MIN: i32 = 13_000;

/// Bytes of the landing area of small downloads.
const LANDING_BYTES: usize = 256 << 10;

impl Cuda {
    /// Opens GPU `ordinal`.
    pub fn open(ordinal: usize) -> Result<Self, OpsError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(OpsError::Absent(
                "no CUDA driver on this machine (libcuda.so.1 was not found); install NVIDIA \
                 driver 580 or later, or use --device cpu"
                    .into(),
            ));
        }
        check_driver()?;
        let count = match CudaContext::device_count() {
            Ok(count) => count.max(0) as usize,
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
            Err(error) => return Err(device_error(&error)),
        };
        if ordinal >= count {
            let text = format!(
                "there is no GPU {ordinal}: the driver shows {count}; see `nvidia-smi` and \
                 CUDA_VISIBLE_DEVICES, or use --device cpu"
            );
            return Err(match count {
                0 => OpsError::Absent(text),
                _ => OpsError::Device(text),
            });
        }
        let context = CudaContext::new(ordinal).map_err(|error| device_error(&error))?;
        // SAFETY: one stream does all work on our buffers, so that nothing needs ordering by events.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|error| device_error(&error))?;
        let compute = context
            .compute_capability()
            .map(|(major, minor)| (major as u32, minor as u32))
            .map_err(|error| device_error(&error))?;
        let multiprocessors = context
            .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(|error| device_error(&error))? as u32;
        let name = context.name().map_err(|error| device_error(&error))?;
        let device = Arc::new(Device {
            context,
            stream,
            allocated_bytes: AtomicU64::new(0),
            compute,
            multiprocessors,
            overlap: AtomicBool::new(compute.0 >= 9),
        });
        let cuda = Cuda {
            landing: Rc::new(RefCell::new(Pinned::new(&device, LANDING_BYTES)?)),
            kernels: Rc::default(),
            scratch: Rc::default(),
            blas: Rc::default(),
            name,
            device,
        };
        cuda.check_compiled()?;
        Ok(cuda)
    }

    /// Fails where the embedded machine code does not fit the GPU.
    fn check_compiled(&self) -> Result<(), OpsError> {
        let Some((first, _)) = MODULES.first() else {
            return Ok(());
        };
        self.load_module(first).map_err(|error| {
            let (major, minor) = self.compute();
            OpsError::Device(format!(
                "{} has compute capability {major}.{minor}, for which this build has no kernels \
                 (it has {}): {error}",
                self.name,
                env!("SPINNEY_KERNEL_ARCHS"),
            ))
        })
    }

    /// cuBLASLt.
    pub(super) fn blas(&self) -> Result<Option<Rc<Blas>>, OpsError> {
        if let Some(open) = self.blas.get() {
            return Ok(open.clone());
        }
        self.bind()?;
        let open = Blas::open()?.map(Rc::new);
        Ok(self.blas.get_or_init(|| open).clone())
    }

    /// Name, compute capability.
    pub(super) fn device_name(&self) -> String {
        let (major, minor) = self.compute();
        format!("{} (sm_{major}{minor})", self.name)
    }

    /// Compute capability, e.g. (9, 0).
    pub(super) fn compute(&self) -> (u32, u32) {
        self.device.compute
    }

    /// Multiprocessors of the GPU.
    pub(super) fn multiprocessors(&self) -> u32 {
        self.device.multiprocessors
    }
}

fn check_driver() -> Result<(), OpsError> {
    let mut version = 0;
    // SAFETY: writes one integer; needs no context.
    let found = unsafe { sys::cuDriverGetVersion(&mut version) };
    if found != sys::CUresult::CUDA_SUCCESS {
        return Err(OpsError::Device(format!(
            "the CUDA driver does not answer ({found:?}); is the kernel module loaded? See \
             `nvidia-smi`, or use --device cpu"
        )));
    }
    if version < DRIVER_VERSION_MIN {
        return Err(OpsError::Device(format!(
            "the NVIDIA driver supports CUDA {}.{}; this build needs CUDA {}.{} (driver 580 or \
             later)",
            version / 1000,
            version % 1000 / 10,
            DRIVER_VERSION_MIN / 1000,
            DRIVER_VERSION_MIN % 1000 / 10,
        )));
    }
    Ok(())
}

/// The driver's own words.
pub(super) fn device_error(error: &DriverError) -> OpsError {
    let name = error
        .error_name()
        .map_or("?".into(), |n| n.to_string_lossy());
    let text = error
        .error_string()
        .map_or("?".into(), |t| t.to_string_lossy());
    OpsError::Device(format!("{name}: {text}"))
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("device", &self.device_name())
            .finish_non_exhaustive()
    }
}
