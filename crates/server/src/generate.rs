//! `POST /generate`: SGLang's own form of a completion, as much of it as its benchmarks use.

mod request;
mod response;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer;
use crate::app::App;
use crate::error::ApiError;
use crate::event_stream;
use crate::sequence_group::SequenceGroup;
use crate::trace::RequestId;

pub(crate) use request::SAMPLING_PARAMS;

use request::GenerateRequest;
use response::{GenerateStream, whole};

/// Continues texts.
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let in_flight = app.admit()?;
    let read = app.receive(&request_id, &headers, body, GenerateRequest::read);
    let GenerateRequest {
        planned,
        choices,
        stream,
        style,
        form,
    } = read.await?;
    let constrained = app.constrain(&request_id, form, planned).await;
    let planned = constrained.map_err(|error| match error.param {
        Some(_) => error.with_param(request::SCHEMA),
        None => error,
    })?;
    let mut group = SequenceGroup::submit(&app, &request_id, planned, choices)?;
    group.introduce(&style.id, Some(&style.id));
    if stream {
        let format = GenerateStream::new(style);
        return event_stream::respond(&app, in_flight, group, format).await;
    }
    let answers = answer::collect(&app, &mut group).await?;
    Ok(answer::respond(whole(&style, &answers, &group), &group))
}
