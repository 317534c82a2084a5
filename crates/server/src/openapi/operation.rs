//! What each path does, in one line.

/// An operation as the document describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// One sentence.
    pub(crate) summary: &'static str,
    /// Schema of the request body, if there is one.
    pub(crate) body: Option<&'static str>,
    /// Names and meanings of query parameters.
    pub(crate) query: &'static [(&'static str, &'static str)],
    /// Content type of a success.
    pub(crate) content: &'static str,
    /// Whether `stream` makes it a stream of events.
    pub(crate) streams: bool,
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

const fn ask(summary: &'static str) -> Operation {
    Operation {
        summary,
        body: None,
        query: &[],
        content: JSON,
        streams: false,
    }
}

const fn send(summary: &'static str, body: &'static str) -> Operation {
    Operation {
        body: Some(body),
        ..ask(summary)
    }
}

const fn generate(summary: &'static str, body: &'static str) -> Operation {
    Operation {
        streams: true,
        ..send(summary, body)
    }
}

pub(crate) const CHAT: Operation = generate("Answer a conversation", "ChatRequest");
pub(crate) const COMPLETION: Operation = generate("Continue texts", "CompletionRequest");
pub(crate) const GENERATE: Operation =
    generate("Continue texts, as SGLang does", "GenerateRequest");
pub(crate) const MESSAGE: Operation =
    generate("Answer a conversation, as Anthropic does", "MessageRequest");
pub(crate) const COUNT_TOKENS: Operation = send(
    "Tokens of a conversation, as Anthropic counts",
    "CountRequest",
);
pub(crate) const RESPONSE: Operation = generate(
    "Answer a conversation, in OpenAI's newer form",
    "ResponseRequest",
);
pub(crate) const INPUT_TOKENS: Operation =
    send("Tokens of a conversation in that form", "ResponseRequest");
pub(crate) const MODELS: Operation = ask("The names of the model");
pub(crate) const MODEL: Operation = ask("One name of the model");
pub(crate) const TOKENIZE: Operation = send("Token ids of a text", "TokenizeRequest");
pub(crate) const DETOKENIZE: Operation = send("Text of token ids", "DetokenizeRequest");
pub(crate) const TEMPLATE: Operation = send("The prompt of a conversation", "TemplateRequest");
pub(crate) const ROOT: Operation = ask("Name, version and model");
pub(crate) const HEALTH: Operation = ask("Whether requests should be sent here");
pub(crate) const LIVE: Operation = ask("Whether the process should be left alone");
pub(crate) const HEALTH_GENERATE: Operation = ask("Whether tokens come out of the engine");
pub(crate) const METRICS: Operation = Operation {
    content: TEXT,
    ..ask("Counters and histograms for Prometheus")
};
pub(crate) const MODEL_INFO: Operation = ask("Facts about the model");
pub(crate) const SERVER_INFO: Operation = ask("Flags, memory and speculation");
pub(crate) const LOADS: Operation = Operation {
    query: &[
        (
            "include",
            "Sections, separated by commas: core, queues, memory, spec",
        ),
        ("format", "json or prometheus"),
    ],
    ..ask("How busy the server is")
};
pub(crate) const FLUSH: Operation = Operation {
    query: &[("timeout", "Seconds to wait for an idle server")],
    ..ask("Empty the prefix cache of an idle server")
};
pub(crate) const ABORT: Operation = send("End requests by name, or all", "AbortRequest");
pub(crate) const OPENAPI: Operation = ask("This document");
