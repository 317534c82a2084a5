//! `POST /v1/responses` and `/v1/responses/input_tokens`: OpenAI's newer API without its state, made
//! of chat requests.

mod items;
mod output;
mod request;
mod response;
mod tools;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::answer;
use crate::app::App;
use crate::chat::{self, ChatRequest};
use crate::error::ApiError;
use crate::event_stream;
use crate::fields::Fields;
use crate::ids;
use crate::sequence_group::SequenceGroup;
use crate::trace::RequestId;

pub(crate) use request::IGNORED;

use request::{Asked, NAMES};
use response::{ResponseStream, Style, whole};

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let in_flight = app.admit()?;
    let read = app.receive(&request_id, &headers, body, |app, body| {
        let (rules, metrics) = (&app.config.rules, &app.metrics);
        let asked = request::translate(&Fields::root(body), rules, metrics)?;
        let read = ChatRequest::read(app, &asked.chat.body);
        let request = read.map_err(|error| asked.chat.blame(error, NAMES))?;
        Ok((request, asked))
    });
    let (request, asked) = read.await?;
    let style = style(&request, asked);
    let ChatRequest {
        planned,
        choices,
        streaming,
        style: _,
        form,
        rid,
    } = request;
    let planned = app.constrain(&request_id, form, planned).await?;
    let mut group = SequenceGroup::submit(&app, &request_id, planned, choices)?;
    group.introduce(&style.id, rid.as_deref());
    if streaming.on {
        let format = ResponseStream::new(Arc::clone(&app), style);
        return event_stream::respond(&app, in_flight, group, format).await;
    }
    let answers = answer::collect(&app, &mut group).await?;
    let Some(answer) = answers.first() else {
        return Err(ApiError::internal(
            &request_id,
            "a request without an answer",
        ));
    };
    let whole = whole(&app, &style, answer, &group);
    Ok(answer::respond(whole, &group))
}

fn style(request: &ChatRequest, asked: Asked) -> Style {
    let mut echo = asked.echo;
    // What the client left to the server is known now.
    if let Some(planned) = request.planned.first() {
        let sampling = &planned.request.sampling;
        for (name, value) in [
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
        ] {
            if echo.get(name).is_some_and(Value::is_null) {
                echo.insert(name.into(), shortest(value));
            }
        }
    }
    Style {
        id: ids::random_id("resp_"),
        created: request.style.created,
        model: request.style.model.clone(),
        logprobs: request.style.logprobs,
        reasoning: request.style.include_reasoning,
        custom: asked.custom,
        echo,
    }
}

/// The number as it was written: 0.95, not the nearest single-precision value to it.
fn shortest(value: f32) -> Value {
    value
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

/// Counts the tokens of a conversation, with or without an engine that is ready.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let count = app.receive(&request_id, &headers, body, |app, body| {
        let fields = Fields::root(body);
        if fields.get("model").is_some() {
            app.model(&fields)?;
        }
        let asked = request::translate(&fields, &app.config.rules, &app.metrics)?;
        let count = chat::count_tokens(app, &asked.chat.body);
        count.map_err(|error| asked.chat.blame(error, NAMES))
    });
    let count = count.await?;
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": count}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_repeated_as_they_were_written() {
        for (value, text) in [(0.95, "0.95"), (1.0, "1.0"), (0.1, "0.1"), (0.0, "0.0")] {
            assert_eq!(shortest(value).to_string(), text);
        }
    }
}
