//! `POST /v1/chat/completions`.

mod request;
mod response;
mod tools;

pub(crate) use request::last_turn;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer;
use crate::app::App;
use crate::error::ApiError;
use crate::event_stream;
use crate::sequence_group::SequenceGroup;
use crate::trace::RequestId;

pub(crate) use request::{ChatRequest, conversation, count_tokens, prompt};

use response::{ChatStream, whole};

/// Answers a conversation.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Result<Response, ApiError> {
    let in_flight = app.admit()?;
    let read = app.receive(&request_id, &headers, body, ChatRequest::read);
    let ChatRequest {
        planned,
        choices,
        streaming,
        style,
        form,
        rid,
    } = read.await?;
    let planned = app.constrain(&request_id, form, planned).await?;
    let mut group = SequenceGroup::submit(&app, &request_id, planned, choices)?;
    group.introduce(&style.id, rid.as_deref());
    if streaming.on {
        let format = ChatStream::new(Arc::clone(&app), style, streaming, choices);
        return event_stream::respond(&app, in_flight, group, format).await;
    }
    let answers = answer::collect(&app, &mut group).await?;
    Ok(answer::respond(
        whole(&app, &style, answers, &group),
        &group,
    ))
}
