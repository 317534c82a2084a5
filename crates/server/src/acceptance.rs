//! Laws of simulated acceptance, for benchmarks on weights that mean nothing.

use std::path::Path;

use engine::AcceptanceLaw;
use serde::Deserialize;

/// Drafted depths.
const DEPTHS: usize = 15;
/// After a miss of the first child, each later one is taken at this share of the first's rate.
pub const LATER_SHARE: f64 = 0.25;
/// Key of the random numbers.
const SEED: u64 = 1;

/// The law whose chain of 15 drafts emits `mean` tokens per step: with the same rate r at every
/// depth, `1 + r + r^2 + ... + r^15`. Later siblings are taken at [`LATER_SHARE`] of r.
pub fn of_mean(mean: f64) -> Result<AcceptanceLaw, String> {
    let most = (DEPTHS + 1) as f64;
    if !(1.0..=most).contains(&mean) {
        return Err(format!(
            "a chain of {DEPTHS} emits 1 to {most} tokens per step, not {mean}"
        ));
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let rate = (low + high) / 2.0;
        match chain_mean(rate) < mean {
            true => low = rate,
            false => high = rate,
        }
    }
    Ok(AcceptanceLaw {
        first: [high as f32; DEPTHS],
        later: [(high * LATER_SHARE) as f32; DEPTHS],
        seed: SEED,
    })
}

/// Tokens per step of a chain whose drafts are each accepted at `rate`.
fn chain_mean(rate: f64) -> f64 {
    (0..=DEPTHS as i32).map(|depth| rate.powi(depth)).sum()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LawFile {
    first: [f32; DEPTHS],
    later: [f32; DEPTHS],
}

/// Rates by depth from a file.
pub fn of_file(path: &Path) -> Result<AcceptanceLaw, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!("expected a mean of 1 to 16 or a file of rates; {shown}: {error}")
    })?;
    let law: LawFile = serde_json::from_str(&text)
        .map_err(|error| format!("{shown}: expected {{\"first\": [15 rates], ...}}: {error}"))?;
    let rates = law.first.iter().chain(&law.later);
    if let Some(rate) = rates.into_iter().find(|rate| !(0.0..=1.0).contains(*rate)) {
        return Err(format!("{shown}: a rate of {rate}; rates are 0 to 1"));
    }
    let law = AcceptanceLaw {
        first: law.first,
        later: law.later,
        seed: SEED,
    };
    match law.misranked_depth() {
        None => Ok(law),
        Some(depth) => Err(format!(
            "{shown}: at depth {depth} the second candidate would be accepted more often than the \
             first; a drafter ranks by likelihood, so first must be at least (1 - first) * later"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_solves_the_rate_of_a_chain() {
        for mean in [1.0, 2.5, 4.5, 6.5, 15.9, 16.0] {
            let law = of_mean(mean).unwrap();
            let found = chain_mean(f64::from(law.first[0]));
            assert!((found - mean).abs() < 1e-5, "{found} for {mean}");
        }
        for wrong in [0.9, 16.1, f64::NAN] {
            assert!(of_mean(wrong).is_err());
        }
    }

    #[test]
    fn files_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("law.json");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        assert!(of_file(&path).unwrap_err().contains("a mean of 1 to 16"));
        let rates = format!("{:?}", [0.5; DEPTHS]);
        write(&format!("{{\"first\": {rates}, \"later\": {rates}}}"));
        assert_eq!(of_file(&path).unwrap().later, [0.5; DEPTHS]);
        write(&format!("{{\"first\": {rates}, \"later\": [1]}}"));
        assert!(of_file(&path).unwrap_err().contains("15 rates"));
        let high = rates.replacen("0.5", "1.5", 1);
        write(&format!("{{\"first\": {high}, \"later\": {rates}}}"));
        assert!(of_file(&path).unwrap_err().contains("a rate of 1.5"));
        let low = rates.replacen("0.5", "0.2", 1);
        write(&format!("{{\"first\": {low}, \"later\": {rates}}}"));
        assert!(of_file(&path).unwrap_err().contains("at depth 0"));
    }
}
