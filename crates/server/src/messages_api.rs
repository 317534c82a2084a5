//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, made of chat requests.

mod blocks;
mod content;
mod error;
mod request;
mod response;
mod system;

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

pub(crate) use error::translate as translate_errors;
pub(crate) use request::IGNORED;

use request::{NAMES, Thinking};
use response::{MessageStream, Style, whole};

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
        let (chat, thinking) = request::translate(&Fields::root(body), rules, metrics)?;
        let read = ChatRequest::read(app, &chat.body);
        let request = read.map_err(|error| chat.blame(error, NAMES))?;
        Ok((request, thinking))
    });
    let (request, thinking) = read.await?;
    let ChatRequest {
        planned,
        choices,
        streaming,
        style,
        form,
        rid,
    } = request;
    let style = Style {
        id: ids::random_id("msg_"),
        model: style.model,
        thinking: thinking == Thinking::Shown,
    };
    let planned = app.constrain(&request_id, form, planned).await?;
    let mut group = SequenceGroup::submit(&app, &request_id, planned, choices)?;
    group.introduce(&style.id, rid.as_deref());
    if streaming.on {
        let format = MessageStream::new(style);
        return event_stream::respond(&app, in_flight, group, format).await;
    }
    let answers = answer::collect(&app, &mut group).await?;
    let Some(answer) = answers.first() else {
        return Err(ApiError::internal(
            &request_id,
            "a request without an answer",
        ));
    };
    let whole = whole(&style, answer, &group)?;
    Ok(answer::respond(whole, &group))
}

/// Counts the tokens of a conversation, with or without an engine that is ready.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let count = app.receive(&request_id, &headers, body, |app, body| {
        let fields = Fields::root(body);
        app.model(&fields)?;
        let (chat, _) = request::conversation(&fields, &app.config.rules, &app.metrics)?;
        let count = chat::count_tokens(app, &chat.body);
        count.map_err(|error| chat.blame(error, NAMES))
    });
    Ok(Json(json!({"input_tokens": count.await?})))
}
