//! Which tests prove which point.

use std::path::Path;

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
            "positions_fall",
        ],
    ),
    (13, "tests/http_lifecycle.rs", &["counters_add_up"]),
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

/// Status and code of every row of the table of errors, and a file whose tests get it. A limit of
/// a key's rate does not exist yet.
const ROWS: &[(u32, &str, &str)] = &[
    (400, "null", "tests/http_bodies.rs"),
    (400, "missing_required_parameter", "tests/http_errors.rs"),
    (400, "invalid_type", "tests/http_fields.rs"),
    (400, "invalid_value", "tests/http_errors.rs"),
    (400, "integer_below_min_value", "tests/http_errors.rs"),
    (400, "integer_above_max_value", "tests/http_errors.rs"),
    (400, "decimal_below_min_value", "tests/http_errors.rs"),
    (400, "decimal_above_max_value", "tests/http_errors.rs"),
    (400, "string_above_max_length", "tests/http_bodies.rs"),
    (400, "array_above_max_length", "tests/http_bodies.rs"),
    (400, "empty_array", "tests/http_errors.rs"),
    (400, "unsupported_parameter", "tests/http_fields.rs"),
    (400, "unsupported_value", "tests/http_fields.rs"),
    (400, "invalid_json_schema", "tests/http_structured.rs"),
    (400, "invalid_messages", "tests/http_errors.rs"),
    (
        400,
        "context_length_exceeded",
        "tests/conformance/contexts.rs",
    ),
    (401, "invalid_api_key", "tests/http_errors.rs"),
    (403, "insufficient_permissions", "tests/http_operations.rs"),
    (404, "model_not_found", "tests/http_errors.rs"),
    (404, "unknown_url", "tests/http_errors.rs"),
    (405, "method_not_supported", "tests/http_errors.rs"),
    (408, "request_timeout", "tests/http_errors.rs"),
    (413, "request_too_large", "tests/http_bodies.rs"),
    (415, "unsupported_media_type", "tests/http_errors.rs"),
    (429, "queue_full", "tests/http_errors.rs"),
    (500, "internal_error", "tests/broken_model.rs"),
    (503, "model_loading", "tests/hub.rs"),
    (503, "server_draining", "tests/http_lifecycle.rs"),
    (503, "queue_timeout", "tests/queue.rs"),
    (503, "engine_unavailable", "tests/watchdog.rs"),
    (504, "request_timeout", "tests/http_errors.rs"),
];

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_point_has_tests_that_exist() {
    for (point, file, tests) in TESTS {
        let text = text(file);
        for test in *tests {
            let found = text.contains(&format!("fn {test}("));
            assert!(found, "point {point}: no {test} in {file}");
        }
    }
    for point in (1..=15).filter(|point| *point != 5) {
        let listed = TESTS.iter().any(|(listed, ..)| *listed == point);
        assert!(listed, "point {point} has no test");
    }
}

#[test]
fn point_05_every_row_of_the_error_table_has_a_test() {
    for (status, code, file) in ROWS {
        let text = text(file);
        let row = text.contains(code) && text.contains(&status.to_string());
        assert!(row, "no {status} {code} in {file}");
    }
}
