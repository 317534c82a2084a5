//! Which tests prove which point.

use std::path::Path;

use crate::errors::ROWS;

/// Point, file and tests.
const TESTS: &[(u32, &str, &[&str])] = &[
    (
        1,
        "tests/openai_client.rs",
        &["the_openai_client_gets_what_it_expects"],
    ),
    (
        2,
        "tests/conformance/frames.rs",
        &["point_02_raw_stream_has_the_documented_order_and_keys"],
    ),
    (
        2,
        "tests/http_chat.rs",
        &[
            "a_stream_is_the_answer_in_pieces_and_in_order",
            "usage_is_sent_on_demand",
        ],
    ),
    (
        3,
        "tests/conformance/equality.rs",
        &[
            "point_03_stream_equals_whole",
            "point_03_stream_equals_whole_on_200_prompts",
        ],
    ),
    (
        3,
        "tests/http_tools.rs",
        &["several_choices_have_calls_of_their_own"],
    ),
    (
        3,
        "tests/http_structured.rs",
        &["every_mode_writes_the_same_json_of_the_schema"],
    ),
    (
        4,
        "crates/server/src/text_stream/call_tests/golden.rs",
        &[
            "outputs_mean_what_they_should",
            "outputs_may_be_cut_anywhere",
        ],
    ),
    (
        4,
        "crates/server/src/text_stream/tests.rs",
        &[
            "repeated_marks_are_swallowed",
            "an_opening_mark_first_in_the_content_opens_reasoning",
            "cut_inside_the_reasoning_everything_is_reasoning",
            "reasoning_split_equals_a_split_of_the_whole_text",
        ],
    ),
    (
        4,
        "tests/http_tools.rs",
        &["a_limit_leaves_a_call_open", "thoughts_come_before_a_call"],
    ),
    (
        5,
        "tests/conformance/errors.rs",
        &["point_05_every_row_that_a_request_reaches_is_reached"],
    ),
    (
        6,
        "tests/conformance/limits.rs",
        &[
            "point_06_limits_from_1_to_64_are_exact",
            "point_06_a_stop_at_the_limit_is_a_stop",
        ],
    ),
    (6, "tests/lossless.rs", &["limits_cut_at_every_length"]),
    (
        7,
        "tests/conformance/stops.rs",
        &[
            "point_07_stop_strings_over_tokens",
            "point_07_four_stop_strings",
            "point_07_a_stop_string_inside_an_emoji",
        ],
    ),
    (
        7,
        "crates/server/src/text_stream/tests.rs",
        &[
            "equals_a_search_in_the_whole_text",
            "characters_are_never_cut",
        ],
    ),
    (
        8,
        "tests/conformance/contexts.rs",
        &[
            "point_08_the_last_prompt_that_fits_leaves_one_token",
            "point_08_the_pool_is_the_context_where_it_is_smaller",
            "point_08_asking_for_more_than_fits_is_told_apart",
        ],
    ),
    (
        9,
        "tests/http_bodies.rs",
        &["null_is_nothing_in_every_field"],
    ),
    (
        9,
        "tests/http_fields.rs",
        &[
            "every_field_takes_its_type_and_no_other",
            "hints_are_taken_and_counted",
        ],
    ),
    (9, "tests/http_chat.rs", &["null_is_the_same_as_nothing"]),
    (
        9,
        "tests/http_errors.rs",
        &["strict_servers_refuse_unknown_fields"],
    ),
    (
        9,
        "tests/http_openapi.rs",
        &[
            "chat_requests_are_as_described",
            "completion_requests_are_as_described",
            "generate_requests_are_as_described",
        ],
    ),
    (
        10,
        "tests/disconnect.rs",
        &[
            "clients_that_leave_leave_nothing",
            "a_thousand_clients_that_leave_leave_nothing",
        ],
    ),
    (
        10,
        "tests/http_lifecycle.rs",
        &["a_client_that_goes_away_takes_its_work_with_it"],
    ),
    (11, "tests/http_errors.rs", &["a_full_queue"]),
    (
        11,
        "tests/queue.rs",
        &["requests_that_wait_for_too_long_are_told_so"],
    ),
    (
        11,
        "tests/hub.rs",
        &["a_server_listens_and_tells_while_it_downloads"],
    ),
    (
        11,
        "tests/drain.rs",
        &[
            "a_server_that_leaves_says_so_before_it_refuses",
            "what_waits_is_served_to_its_end",
        ],
    ),
    (
        11,
        "tests/http_lifecycle.rs",
        &[
            "a_signal_lets_running_requests_end",
            "requests_that_outlast_the_drain_are_told",
            "a_second_signal_ends_the_wait",
        ],
    ),
    (
        12,
        "tests/conformance/sampling.rs",
        &[
            "point_12_a_banned_token_never_comes_in_1000_samples",
            "point_12_top_k_top_p_and_min_p_act",
            "point_12_penalties_act",
            "point_12_seeds_give_the_same_tokens_in_every_mode",
        ],
    ),
    (
        12,
        "tests/http_chat.rs",
        &["speculation_changes_no_token", "bias_bans_and_forces"],
    ),
    (
        12,
        "tests/lossless.rs",
        &["modes_agree", "modes_agree_on_all_held_out_prompts"],
    ),
    (
        12,
        "tests/sampling_law.rs",
        &[
            "random_pair_follows_its_law_over_20000_samples",
            "bundled_pair_follows_its_law_over_20000_samples",
        ],
    ),
    (
        13,
        "tests/http_metrics.rs",
        &[
            "numbers_agree_with_answers",
            "numbers_agree_with_each_other",
            "every_sequence_is_in_every_histogram_once",
            "positions_fall",
        ],
    ),
    (13, "tests/http_lifecycle.rs", &["counters_add_up"]),
    (
        13,
        "tests/broken_model.rs",
        &["a_request_that_breaks_is_not_to_be_sent_again"],
    ),
    (
        14,
        "tests/http_openapi.rs",
        &[
            "chat_requests_are_as_described",
            "every_path_of_the_description_is_answered",
        ],
    ),
    (
        15,
        "tests/conformance/bodies.rs",
        &["point_15_32_mib_are_read_and_one_byte_more_is_not"],
    ),
    (
        15,
        "tests/http_bodies.rs",
        &[
            "pages_ask_first_and_get_no_content",
            "bytes_that_are_no_text_are_refused_everywhere",
            "deep_and_long_conversations_are_refused",
        ],
    ),
    (
        15,
        "tests/http_errors.rs",
        &[
            "keys",
            "bodies_too_large_or_too_slow",
            "pages_of_other_origins",
        ],
    ),
];

/// Rows of the table of errors that a request to a sound server does not reach, and the test that
/// does. A limit of a key's rate does not exist yet.
const OTHER_ROWS: &[(u16, &str, &str, &str)] = &[
    (
        500,
        "internal_error",
        "tests/broken_model.rs",
        "a_request_that_breaks_is_not_to_be_sent_again",
    ),
    (
        503,
        "model_loading",
        "tests/hub.rs",
        "a_server_listens_and_tells_while_it_downloads",
    ),
    (
        503,
        "engine_unavailable",
        "tests/watchdog.rs",
        "under_a_watchdog_it_only_falls_silent",
    ),
];

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The lines of a test and whether it runs without being asked for; `None`: there is no such test.
fn test<'a>(text: &'a str, name: &str) -> Option<(Vec<&'a str>, bool)> {
    let lines: Vec<&str> = text.lines().collect();
    let head = format!("fn {name}(");
    let at = (lines.iter()).position(|line| line.trim_start().starts_with(&head))?;
    let above = lines[..at].iter().rev().map(|line| line.trim_start());
    let attributes: Vec<&str> = above.take_while(|line| line.starts_with("#[")).collect();
    let indent = lines[at].len() - lines[at].trim_start().len();
    let end = format!("{}}}", " ".repeat(indent));
    let body = lines[at..].iter().take_while(|line| **line != end);
    let ignored = attributes.iter().any(|line| line.starts_with("#[ignore"));
    (attributes.contains(&"#[test]")).then(|| (body.copied().collect(), !ignored))
}

#[test]
fn every_point_has_tests_that_run() {
    let mut running = [0; 16];
    for (point, file, tests) in TESTS {
        let text = text(file);
        for name in *tests {
            let found = test(&text, name);
            assert!(found.is_some(), "point {point}: no test {name} in {file}");
            let runs = found.is_some_and(|(_, runs)| runs);
            running[*point as usize] += usize::from(runs);
        }
    }
    for (point, count) in running.iter().enumerate().skip(1) {
        assert!(*count > 0, "no test of point {point} runs");
    }
}

#[test]
fn point_05_every_row_of_the_error_table_has_a_test() {
    for (status, code, file, name) in OTHER_ROWS {
        let own = text(file);
        let (lines, runs) = test(&own, name).unwrap_or_else(|| panic!("no test {name} in {file}"));
        let body = lines.join("\n");
        let row = runs && body.contains(code) && body.contains(&status.to_string());
        assert!(row, "{status} {code} does not come in {name} of {file}");
    }
    assert_eq!(OTHER_ROWS.len() + ROWS.len(), 31, "rows of the table");
}
