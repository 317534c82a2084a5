//! Request ids, the access log and the counters of HTTP itself.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use crate::access_log::AccessLine;
use crate::app::App;
use crate::error::ErrorCode;
use crate::ids;
use crate::metrics::ActiveHttp;
use crate::peer::Peer;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request: the client's own or a fresh one.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// Names the request, counts it, logs it.
pub(crate) async fn trace(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| ids::is_request_id(id))
        .map_or_else(|| ids::random_id("req_"), str::to_owned);
    let method = request.method().clone();
    let endpoint = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unknown", MatchedPath::as_str)
        .to_owned();
    request.extensions_mut().insert(RequestId(id.clone()));
    app.metrics
        .count_http_request(&endpoint, method_name(&method));
    let peer = request.extensions().get::<Peer>().copied();
    let line = AccessLine::new(&id, method_name(&method), request.uri().path(), peer);
    let active = ActiveHttp::new(Arc::clone(&app.metrics));
    let mut response = next.run(request).await;
    drop(active);
    let status = response.status().as_u16();
    app.metrics
        .count_http_response(&endpoint, method_name(&method), status);
    let code = response
        .extensions()
        .get::<ErrorCode>()
        .and_then(|code| code.0);
    if let (429 | 503, true, Some(code)) = (status, method == Method::POST, code) {
        app.metrics.count_rejection(code);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    line.answered(response, code)
}

/// Methods are the client's to invent, labels are not.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
