//! Counter-based random numbers: the same draw for the same output position, however tokens were
//! grouped into steps.

/// The uniform number in `[0, 1)` that decides output token `index` of answer `choice` under
/// `seed`: Philox 4x32-10 with key = seed and counter = (index, choice, 0, 0), first word, top 24
/// bits.
pub fn uniform(_seed: u64, _index: u32, _choice: u32) -> f32 {
    todo!()
}
