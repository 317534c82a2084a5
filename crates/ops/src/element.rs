//! Types that a buffer can hold.

use half::{bf16, f16};

use crate::sampling::SamplingRow;

/// A plain value that may live in device memory.
pub trait Element: bytemuck::Pod + Send + Sync + std::fmt::Debug {}

impl Element for f32 {}
impl Element for f16 {}
impl Element for bf16 {}
impl Element for u8 {}
impl Element for i32 {}
impl Element for u32 {}
impl Element for u64 {}
impl Element for SamplingRow {}
