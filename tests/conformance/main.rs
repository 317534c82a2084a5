//! Conformance: one test per point of the HTTP interface's checklist, against the real binary with
//! the bundled pair. A test here is named after its point. What other files prove already is not
//! proved twice: `index` lists it, and checks that the tests it lists exist and run.
//!
//! | Point | What | Where |
//! |---|---|---|
//! | 1 | the official client's typed models | `openai_client` |
//! | 2 | order, keys and end of a raw stream | here, `http_chat` |
//! | 3 | stream = whole answer, in every mode | here, `http_tools`, `http_structured` |
//! | 4 | parsers of calls and reasoning | unit tests of `text_stream`, `http_tools` |
//! | 5 | every row of the table of errors | here, and the files that `index` names |
//! | 6 | limits to the token | here, `lossless` |
//! | 7 | stop strings | here, unit tests of `text_stream` |
//! | 8 | prompts as long as the context | here, `http_errors` |
//! | 9 | null, unknown, wrong types | `http_bodies`, `http_fields`, `http_openapi` |
//! | 10 | clients that leave | `disconnect`, `http_lifecycle` |
//! | 11 | queue, loading, drain | `http_errors`, `queue`, `hub`, `drain`, `http_lifecycle` |
//! | 12 | the law of sampling | here, `http_chat`, `lossless`, `sampling_law` |
//! | 13 | numbers that agree | `http_metrics`, `http_lifecycle` |
//! | 14 | bodies made from the description | `http_openapi` |
//! | 15 | bodies, keys and pages at the limits | here, `http_bodies`, `http_errors` |
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../common/server.rs"]
mod server;

mod answer;
mod bodies;
mod contexts;
mod corpus;
mod equality;
mod errors;
mod frames;
mod index;
mod limits;
mod modes;
mod sampling;
mod stops;

const CHAT: &str = "/v1/chat/completions";
