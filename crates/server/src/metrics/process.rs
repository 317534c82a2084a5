//! What the operating system says about this process.

use std::fs;

/// Resident memory in bytes; `None` where the system does not say.
pub(super) fn resident_bytes() -> Option<u64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

/// Open file descriptors, without the one that counts them.
pub(super) fn open_fds() -> Option<usize> {
    let entries = fs::read_dir("/proc/self/fd").ok()?;
    Some(entries.count().saturating_sub(1))
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t   12 kB\n"), Some(12_288));
        for text in ["", "VmRSS: 12 MB\n", "VmRSS: x kB\n"] {
            assert_eq!(resident(text), None, "{text:?}");
        }
    }
}
