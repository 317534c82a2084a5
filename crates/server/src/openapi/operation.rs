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
    /// Schema of a success, if it is JSON of a known form.
    pub(crate) answer: Option<&'static str>,
    /// Schema of the data of an event, likewise.
    pub(crate) chunk: Option<&'static str>,
    /// Schema of a failure.
    pub(crate) error: &'static str,
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
        answer: None,
        chunk: None,
        error: "Error",
    }
}

const fn send(summary: &'static str, body: &'static str) -> Operation {
    Operation {
        body: Some(body),
        ..ask(summary)
    }
}

impl Operation {
    const fn says(mut self, answer: &'static str) -> Self {
        self.answer = Some(answer);
        self
    }

    const fn streams(mut self, chunk: &'static str) -> Self {
        self.chunk = Some(chunk);
        self
    }

    const fn fails_with(mut self, error: &'static str) -> Self {
        self.error = error;
        self
    }
}

const fn generate(summary: &'static str, body: &'static str) -> Operation {
    Operation {
        streams: true,
        ..send(summary, body)
    }
}

pub(crate) const CHAT: Operation = generate("Answer a conversation", "ChatRequest")
    .says("ChatCompletion")
    .streams("ChatChunk");
pub(crate) const COMPLETION: Operation = generate("Continue texts", "CompletionRequest")
    .says("Completion")
    .streams("CompletionChunk");
pub(crate) const GENERATE: Operation =
    generate("Continue texts, as SGLang does", "GenerateRequest")
        .says("Generations")
        .streams("Generation");
pub(crate) const MESSAGE: Operation =
    generate("Answer a conversation, as Anthropic does", "MessageRequest")
        .fails_with("MessageError");
pub(crate) const COUNT_TOKENS: Operation = send(
    "Tokens of a conversation, as Anthropic counts",
    "CountRequest",
)
.fails_with("MessageError");
pub(crate) const RESPONSE: Operation = generate(
    "Answer a conversation, in OpenAI's newer form",
    "ResponseRequest",
);
pub(crate) const INPUT_TOKENS: Operation =
    send("Tokens of a conversation in that form", "ResponseRequest");
pub(crate) const MODELS: Operation = ask("The names of the model").says("Models");
pub(crate) const MODEL: Operation = ask("One name of the model").says("Model");
pub(crate) const TOKENIZE: Operation =
    send("Token ids of a text", "TokenizeRequest").says("Tokens");
pub(crate) const DETOKENIZE: Operation =
    send("Text of token ids", "DetokenizeRequest").says("Text");
pub(crate) const TEMPLATE: Operation =
    send("The prompt of a conversation", "TemplateRequest").says("Prompt");
pub(crate) const ROOT: Operation = ask("Name, version and model").says("Facts");
pub(crate) const UI: Operation = Operation {
    content: "text/html",
    ..ask("A playground for the browser")
};
pub(crate) const HEALTH: Operation = ask("Whether requests should be sent here").says("Status");
pub(crate) const LIVE: Operation = ask("Whether the process should be left alone").says("Status");
pub(crate) const HEALTH_GENERATE: Operation =
    ask("Whether tokens come out of the engine").says("Status");
pub(crate) const METRICS: Operation = Operation {
    content: TEXT,
    ..ask("Counters and histograms for Prometheus, as OpenMetrics where Accept prefers that")
};
pub(crate) const MODEL_INFO: Operation = ask("Facts about the model").says("Facts");
pub(crate) const SERVER_INFO: Operation = ask("Flags, memory and speculation").says("Facts");
pub(crate) const LOADS: Operation = Operation {
    query: &[
        (
            "include",
            "Sections, separated by commas: core, queues, memory, spec",
        ),
        ("format", "json or prometheus"),
    ],
    answer: Some("Facts"),
    ..ask("How busy the server is")
};
pub(crate) const FLUSH: Operation = Operation {
    query: &[("timeout", "Seconds to wait for an idle server")],
    answer: Some("Flushed"),
    ..ask("Empty the prefix cache of an idle server")
};
pub(crate) const ABORT: Operation =
    send("End requests by name, or all", "AbortRequest").says("Aborted");
pub(crate) const OPENAPI: Operation = ask("This document").says("Facts");
