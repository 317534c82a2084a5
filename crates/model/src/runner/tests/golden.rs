//! Logits of the public reference implementations (`tests/fixtures/*/README.md`).

use ops::SamplingParams;

use super::*;

/// The library's own full pass and cached steps differ by 1.3e-4 on this model.
const TOLERANCE: f32 = 1e-3;

fn case(golden: &HashMap<String, Vec<f32>>, name: &str) -> (Vec<u32>, usize) {
    let tokens = ids(&golden[&format!("{name}_ids")]);
    (tokens, golden[&format!("{name}_prompt")][0] as usize)
}

#[test]
fn target_prefill_matches_whole_and_in_pieces() {
    let golden = golden("qwen3_5");
    let mut runner = runner(config());
    for name in ["a", "b", "c"] {
        let (tokens, _) = case(&golden, name);
        for cuts in [&[][..], &[1, 3, 20][..], &[64, 128][..]] {
            start(&mut runner, 1, &tokens, &SamplingParams::default());
            let logits = prefill_pieces(&mut runner, 1, &tokens, cuts, false);
            let worst = max_difference(&logits, &golden[&format!("{name}_full")]);
            println!("case {name}, cuts {cuts:?}: max difference {worst:.1e}");
            assert!(worst < TOLERANCE, "case {name}, cuts {cuts:?}: {worst}");
        }
    }
}

#[test]
fn target_steps_match() {
    let golden = golden("qwen3_5");
    let mut runner = runner(config());
    for name in ["a", "b", "c"] {
        let (tokens, prompt) = case(&golden, name);
        start(
            &mut runner,
            2,
            &tokens[..prompt],
            &SamplingParams::default(),
        );
        let prefilled = prefill_pieces(&mut runner, 2, &tokens[..prompt], &[], false);
        let mut logits = prefilled[(prompt - 1) * VOCAB..].to_vec();
        for &token in &tokens[prompt..] {
            logits.extend(step_token(&mut runner, 2, token));
        }
        let worst = max_difference(&logits, &golden[&format!("{name}_steps")]);
        println!("case {name}, steps: max difference {worst:.1e}");
        assert!(worst < TOLERANCE, "case {name}: {worst}");
    }
}

#[test]
fn taps_are_taken_behind_their_layers() {
    let golden = golden("qwen3_5");
    let mut runner = runner(config());
    let (tokens, _) = case(&golden, "a");
    start(&mut runner, 0, &tokens, &SamplingParams::default());
    prefill_pieces(&mut runner, 0, &tokens, &[], false);
    let width = 3 * HIDDEN;
    for (order, layer) in [1, 3, 6].into_iter().enumerate() {
        let own: Vec<f32> = (0..tokens.len())
            .flat_map(|row| {
                let at = row * width + order * HIDDEN;
                runner.workspace.taps[at..at + HIDDEN].to_vec()
            })
            .collect();
        let worst = max_difference(&own, &golden[&format!("a_hidden_{layer}")]);
        assert!(worst < TOLERANCE, "tap behind layer {layer}: {worst}");
    }
}

#[test]
fn drafter_logits_match() {
    let target = golden("qwen3_5");
    let golden = golden("dflash");
    let (tokens, _) = case(&target, "a");
    let mut runner = runner(config());
    for (round, (&context, &anchor)) in golden["contexts"]
        .iter()
        .zip(&golden["anchors"])
        .enumerate()
    {
        let context = context as usize;
        start(
            &mut runner,
            0,
            &tokens[..context],
            &SamplingParams::default(),
        );
        prefill_pieces(&mut runner, 0, &tokens[..context], &[], true);
        runner.slots.root[0] = anchor as u32;
        let own = draft(&mut runner, 0);
        let worst = max_difference(&own, &golden[&format!("round_{round}_logits")]);
        println!("round {round}, context {context}: max difference {worst:.1e}");
        assert!(
            worst < TOLERANCE,
            "round {round}, context {context}: {worst}"
        );
    }
}

#[test]
fn drafter_context_from_steps_equals_context_from_prefill() {
    let golden = golden("qwen3_5");
    let (tokens, _) = case(&golden, "a");
    let mut runner = runner(config());
    let draft_bits = |runner: &mut Runner<Cpu>, slot| {
        runner.slots.root[slot] = 5;
        bits(&draft(runner, slot))
    };
    start(&mut runner, 0, &tokens[..90], &SamplingParams::default());
    prefill_pieces(&mut runner, 0, &tokens[..90], &[], true);
    start(&mut runner, 1, &tokens[..40], &SamplingParams::default());
    prefill_pieces(&mut runner, 1, &tokens[..40], &[7], true);
    for &token in &tokens[40..90] {
        step_token(&mut runner, 1, token);
    }
    assert_eq!(draft_bits(&mut runner, 0), draft_bits(&mut runner, 1));
}
