//! How much memory the host has, and how much of it this process may still take.

use std::fs;

use crate::DeviceMemory;

/// Limit, use and statistics of the control group, in its two versions.
const GROUPS: [[&str; 3]; 2] = [
    [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
    ],
    [
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ],
];

/// `None` where the system does not say.
pub(crate) fn host_memory() -> Option<DeviceMemory> {
    let host = host(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let group = GROUPS.iter().find_map(|files| {
        let [limit, used, statistics] = files.map(|file| fs::read_to_string(file).ok());
        group(&limit?, &used?, &statistics.unwrap_or_default())
    });
    Some(match group {
        Some(group) => DeviceMemory {
            free: host.free.min(group.free),
            total: host.total.min(group.total),
        },
        None => host,
    })
}

/// Number behind a name at the beginning of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn host(meminfo: &str) -> Option<DeviceMemory> {
    let bytes = |name| Some(number(meminfo, name)? << 10);
    Some(DeviceMemory {
        free: bytes("MemAvailable:")?,
        total: bytes("MemTotal:")?,
    })
}

/// `None` where the group has no limit. Cached files give way to allocations.
fn group(limit: &str, used: &str, statistics: &str) -> Option<DeviceMemory> {
    let total: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    let cached: u64 = ["inactive_file ", "active_file "]
        .iter()
        .filter_map(|name| number(statistics, name))
        .sum();
    Some(DeviceMemory {
        free: total.saturating_sub(used.saturating_sub(cached)),
        total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says() {
        let text = "MemTotal:       2000 kB\nMemFree:  10 kB\nMemAvailable:   1000 kB\n";
        let memory = host(text).unwrap();
        assert_eq!((memory.free, memory.total), (1000 << 10, 2000 << 10));
        assert_eq!(host("MemTotal: 5 kB"), None);
        let memory = host_memory().expect("a Linux machine");
        assert!(0 < memory.free && memory.free <= memory.total, "{memory:?}");
    }

    #[test]
    fn a_group_may_have_a_limit() {
        let statistics = "anon 300\nfile 500\ninactive_file 100\nactive_file 50\n";
        let memory = group("1000\n", "600\n", statistics).unwrap();
        assert_eq!((memory.free, memory.total), (550, 1000));
        assert_eq!(group("max\n", "600\n", ""), None);
        assert_eq!(group("1000", "1200", "").unwrap().free, 0);
    }
}
