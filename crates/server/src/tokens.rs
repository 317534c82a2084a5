//! `/tokenize`, `/detokenize`, `/apply-template`: text to tokens and back, without the engine. They
//! answer while the model loads and while the queue is full.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::chat;
use crate::completions::{PROMPTS_MAX, token_ids};
use crate::error::ApiError;
use crate::fields::{Fields, too_long, wrong_type};
use crate::trace::RequestId;

/// What a handler does with the object of a body.
type Work = fn(&App, &Map<String, Value>) -> Result<Value, ApiError>;

/// Ids of texts or of a conversation.
pub(crate) async fn tokenize(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    work(app, id, headers, body, ids_of).await
}

/// The text of ids.
pub(crate) async fn detokenize(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    work(app, id, headers, body, text_of).await
}

/// The prompt of a conversation as text.
pub(crate) async fn apply_template(
    app: State<Arc<App>>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    work(app, id, headers, body, prompt_of).await
}

async fn work(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
    work: Work,
) -> Result<Json<Value>, ApiError> {
    let done = app.receive(&request_id, &headers, body, move |app, body| {
        let fields = Fields::root(body);
        if fields.get("model").is_some() {
            app.model(&fields)?;
        }
        work(app, body)
    });
    Ok(Json(done.await?))
}

fn ids_of(app: &App, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let fields = Fields::root(body);
    let vocabulary = &app.files.vocabulary;
    let spelled = fields.boolean("return_token_strs")?.unwrap_or(false);
    // Accepted for clients that always send it: this kind of model has nothing to add.
    fields.boolean("add_special_tokens")?;
    let strings = |ids: &[u32]| -> Vec<String> {
        let one = |&id: &u32| vocabulary.decode(&[id], false);
        ids.iter().map(one).collect()
    };
    let single = |ids: Vec<u32>| {
        let strings = spelled.then(|| strings(&ids));
        answer(app, ids.len(), json!(ids), json!(strings))
    };
    match (fields.get("prompt"), fields.get("messages")) {
        (Some(_), Some(_)) => {
            let message = "'prompt' and 'messages' exclude each other.";
            Err(ApiError::invalid("invalid_value", "prompt", message))
        }
        (None, Some(_)) => {
            let text = chat::prompt(&fields, &app.files, &app.config.rules)?;
            Ok(single(app.encode(&text, "messages")?))
        }
        (Some(Value::String(text)), None) => Ok(single(app.encode(text, "prompt")?)),
        (Some(Value::Array(texts)), None) => {
            if texts.len() > PROMPTS_MAX {
                return Err(too_long("prompt", texts.len(), PROMPTS_MAX));
            }
            let encode = |(index, text): (usize, &Value)| match text {
                Value::String(text) => app.encode(text, "prompt"),
                other => Err(wrong_type(&format!("prompt.[{index}]"), "a string", other)),
            };
            let lists: Vec<Vec<u32>> = texts
                .iter()
                .enumerate()
                .map(encode)
                .collect::<Result<_, _>>()?;
            let strings = spelled.then(|| lists.iter().map(|ids| strings(ids)).collect::<Vec<_>>());
            let count = lists.iter().map(Vec::len).sum();
            Ok(answer(app, count, json!(lists), json!(strings)))
        }
        (Some(other), None) => Err(wrong_type(
            "prompt",
            "a string or an array of strings",
            other,
        )),
        (None, None) => {
            let message = "Missing required parameter: 'prompt' or 'messages'.";
            Err(ApiError::invalid(
                "missing_required_parameter",
                "prompt",
                message,
            ))
        }
    }
}

fn answer(app: &App, count: usize, tokens: Value, strings: Value) -> Value {
    json!({
        "tokens": tokens,
        "count": count,
        "max_model_len": app.engine.info().context_length,
        "token_strs": strings,
    })
}

fn text_of(app: &App, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let fields = Fields::root(body);
    let vocabulary = &app.files.vocabulary;
    let skip = fields.boolean("skip_special_tokens")?.unwrap_or(true);
    let tokens = match fields.required("tokens")? {
        Value::Array(tokens) => tokens,
        other => return Err(wrong_type("tokens", "an array", other)),
    };
    let text = match tokens.first() {
        Some(Value::Array(_)) => {
            let decode = |(index, list): (usize, &Value)| {
                let path = format!("tokens.[{index}]");
                match list {
                    Value::Array(ids) => {
                        let ids = token_ids(ids, &path, vocabulary.len())?;
                        Ok(vocabulary.decode(&ids, skip))
                    }
                    other => Err(wrong_type(&path, "an array of token ids", other)),
                }
            };
            let texts: Result<Vec<_>, _> = tokens.iter().enumerate().map(decode).collect();
            json!(texts?)
        }
        _ => {
            let ids = token_ids(tokens, "tokens", vocabulary.len())?;
            vocabulary.decode(&ids, skip).into()
        }
    };
    // Peers have either name.
    Ok(json!({"text": text, "prompt": text}))
}

fn prompt_of(app: &App, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let prompt = chat::prompt(&Fields::root(body), &app.files, &app.config.rules)?;
    Ok(json!({"prompt": prompt}))
}
