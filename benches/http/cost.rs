//! Processor time by the names of threads.

use std::collections::HashMap;

/// Nanoseconds on a processor of every thread so far, by its id.
pub struct Snapshot(HashMap<String, (Part, u64)>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Server,
    Engine,
    Other,
}

/// Microseconds on a processor.
pub struct Cost {
    /// Everything between the engine and the sockets.
    pub server_us: f64,
    /// The engine's thread, less the time it sleeps.
    pub engine_us: f64,
}

impl Cost {
    /// As of now.
    pub fn now() -> Snapshot {
        let threads = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
        let mut all = HashMap::new();
        for thread in threads.flatten() {
            let path = thread.path();
            // A thread may end meanwhile.
            let read = |file: &str| std::fs::read_to_string(path.join(file)).ok();
            let (Some(name), Some(times)) = (read("comm"), read("schedstat")) else {
                continue;
            };
            let part = match name.trim_end() {
                "engine" => Part::Engine,
                name if name.starts_with("tokio-") => Part::Server,
                _ => Part::Other,
            };
            let nanoseconds = times.split(' ').next().and_then(|first| first.parse().ok());
            let id = thread.file_name().to_string_lossy().into_owned();
            all.insert(id, (part, nanoseconds.unwrap_or(0)));
        }
        Snapshot(all)
    }

    /// Since then.
    pub fn since(before: &Snapshot) -> Self {
        let now = Cost::now();
        let sum = |wanted: Part| -> f64 {
            let own = now.0.iter().filter(|(_, (part, _))| *part == wanted);
            own.map(|(id, (_, after))| {
                let earlier = before.0.get(id).map_or(0, |(_, time)| *time);
                after.saturating_sub(earlier) as f64 / 1e3
            })
            .sum()
        };
        Cost {
            server_us: sum(Part::Server),
            engine_us: sum(Part::Engine),
        }
    }
}

/// The middle of values in any order.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// Of ascending values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    values[((values.len() - 1) as f64 * part).round() as usize]
}
