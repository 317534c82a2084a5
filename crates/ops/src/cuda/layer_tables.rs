//! Tables of pointers to the buffers of all layers, for ops that serve every layer in one launch.

use super::buf::{CudaBuf, DevicePtr};
use super::device::Cuda;
use crate::OpsError;

impl Cuda {
    /// The address of a table of these pointers. The buffers of a model stay where they are, so
    /// each table is made once: at the first, unrecorded run of its op.
    pub(super) fn layer_table(&self, pointers: Vec<u64>) -> Result<DevicePtr, OpsError> {
        let mut tables = self.layer_tables.borrow_mut();
        if let Some(table) = tables.get(&pointers) {
            return Ok(table.ptr());
        }
        let table = CudaBuf::zeroed(&self.device, pointers.len())?;
        self.copy_in(&pointers, &table, 0)?;
        let address = table.ptr();
        tables.insert(pointers, table);
        Ok(address)
    }
}
