//! Kernels: embedded fat binaries, loaded when first used, launched with one parameter struct.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};

use super::device::{Cuda, device_error};
use crate::OpsError;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// A kernel by its file and name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Stem of the file in `kernels/`.
    pub(super) module: &'static str,
    /// Name of the `extern "C"` function.
    pub(super) name: &'static str,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Blocks in x, y and z.
    pub(super) blocks: [u32; 3],
    /// Threads of a block.
    pub(super) threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub(super) shared: u32,
}

/// Modules and functions at hand.
#[derive(Default)]
pub(super) struct LoadedKernels {
    modules: HashMap<&'static str, sys::CUmodule>,
    /// Functions and the dynamic shared memory they may use.
    functions: HashMap<(&'static str, &'static str), (sys::CUfunction, u32)>,
}

/// Dynamic shared memory that a function may use without being told.
const SHARED_DEFAULT: u32 = 48 << 10;

impl Cuda {
    /// Loads a fat binary unless it is loaded.
    pub(super) fn load_module(&self, name: &'static str) -> Result<(), OpsError> {
        let loaded = &mut self.kernels.borrow_mut().modules;
        if loaded.contains_key(name) {
            return Ok(());
        }
        let (_, image) = MODULES
            .iter()
            .find(|(module, _)| *module == name)
            .unwrap_or_else(|| panic!("no kernel file {name}.cu was compiled into this build"));
        self.bind()?;
        // SAFETY: the image is a whole fat binary made by the build script.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(|error| device_error(&error))?;
        loaded.insert(name, module);
        Ok(())
    }

    /// The function, allowed to use `shared` bytes of dynamic shared memory.
    fn function(&self, entry: &Entry, shared: u32) -> Result<sys::CUfunction, OpsError> {
        let key = (entry.module, entry.name);
        let known = self.kernels.borrow().functions.get(&key).copied();
        if let Some((function, allowed)) = known
            && allowed >= shared
        {
            return Ok(function);
        }
        self.load_module(entry.module)?;
        let mut kernels = self.kernels.borrow_mut();
        let name = CString::new(entry.name).expect("names of kernels hold no zero byte");
        // SAFETY: the module stays loaded as long as the context.
        let function = unsafe { result::module::get_function(kernels.modules[entry.module], name) }
            .unwrap_or_else(|error| {
                panic!("{}.cu has no kernel {}: {error}", entry.module, entry.name)
            });
        if shared > SHARED_DEFAULT {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is valid.
            unsafe { result::function::set_function_attribute(function, attribute, shared as i32) }
                .map_err(|error| device_error(&error))?;
        }
        kernels
            .functions
            .insert(key, (function, shared.max(SHARED_DEFAULT)));
        Ok(function)
    }

    /// Blocks of a kernel that one multiprocessor runs at once.
    pub(super) fn resident_blocks(&self, entry: &Entry, grid: Grid) -> Result<u32, OpsError> {
        let function = self.function(entry, grid.shared)?;
        let (threads, shared) = (grid.threads as i32, grid.shared as usize);
        // SAFETY: the function belongs to a module that stays loaded.
        unsafe { result::occupancy::max_active_block_per_multiprocessor(function, threads, shared) }
            .map(|blocks| blocks as u32)
            .map_err(|error| device_error(&error))
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `P` mirrors the parameter struct of the kernel, and its pointers are valid for whatever the
    /// kernel reads and writes.
    pub(super) unsafe fn run<P: Copy>(
        &self,
        entry: &Entry,
        grid: Grid,
        params: P,
    ) -> Result<(), OpsError> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let function = self.function(entry, grid.shared)?;
        self.bind()?;
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.device.stream.cu_stream(),
            attrs: &mut overlap,
            numAttrs: u32::from(self.device.overlap.load(Ordering::Relaxed)),
        };
        let mut arguments = [(&raw const params).cast_mut().cast::<c_void>()];
        // SAFETY: one parameter, which the driver copies before it returns; the caller vouches for
        // its contents.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(|error| {
            OpsError::Device(format!(
                "launch of {} with {grid:?}: {}",
                entry.name,
                device_error(&error)
            ))
        })
    }
}
