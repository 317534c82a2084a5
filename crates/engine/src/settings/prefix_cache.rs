//! What the options of the prefix cache come to.

use ops::PAGE_TOKENS;

use crate::{EngineError, PrefixCacheConfig};

/// Snapshots on a GPU, whose memory the KV pool wants too, at most without being asked for more.
const DEVICE_DEFAULT: usize = 32;
/// The same where the device's memory is the host's.
const CPU_DEFAULT: usize = 16;
/// The part of what weights and workspaces leave that they may take then.
const ROOM_SHARE: u64 = 10;

/// How the engine uses its prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixCacheSettings {
    /// Long prompts keep a state every so many tokens, a multiple of 64.
    pub(crate) interval: usize,
    /// States that decoding made are kept too.
    pub(crate) decoded: bool,
}

/// Everything that can be said without the model.
pub(super) fn check(config: &PrefixCacheConfig) -> Result<(), EngineError> {
    let interval = config.interval;
    if interval == 0 || !interval.is_multiple_of(PAGE_TOKENS) {
        return Err(EngineError::Config(format!(
            "a state kept every {interval} tokens; it must be a multiple of {PAGE_TOKENS}"
        )));
    }
    Ok(())
}

/// Snapshots on the device: as many as asked for, else what a tenth of `room` holds, the bytes that are
/// left for them and the KV pool, and no more than a default. `bytes`: of one.
pub(super) fn snapshots(
    asked: Option<usize>,
    own_memory: bool,
    room: Option<u64>,
    bytes: u64,
) -> usize {
    let most = match own_memory {
        true => DEVICE_DEFAULT,
        false => CPU_DEFAULT,
    };
    let fit = room.map_or(u64::MAX, |room| room / ROOM_SHARE / bytes.max(1));
    let fit = usize::try_from(fit).unwrap_or(usize::MAX);
    asked.unwrap_or(most.min(fit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_take_little_unless_told_otherwise() {
        const GIB: u64 = 1 << 30;
        let table = [
            (None, true, Some(66 * GIB), 154_000_000, 32),
            (None, true, Some(12 * GIB), 154_000_000, 8),
            (None, true, Some(GIB), 154_000_000, 0),
            (None, true, None, 154_000_000, 32),
            (None, false, None, 1, 16),
            (None, false, Some(GIB), 0, 16),
            (None, false, Some(GIB), 20_000_000, 5),
            (Some(100), true, Some(GIB), 154_000_000, 100),
            (Some(0), false, None, 1, 0),
        ];
        for (asked, own, room, bytes, expected) in table {
            let found = snapshots(asked, own, room, bytes);
            assert_eq!(found, expected, "{asked:?} {own} {room:?} {bytes}");
        }
    }
}
