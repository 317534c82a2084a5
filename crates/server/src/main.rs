//! The `spinney` binary.
fn main() {}
