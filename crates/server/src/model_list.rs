//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use serde_json::{Value, json};

use crate::app::{App, unknown_model};
use crate::error::ApiError;
use crate::grammar::GrammarBackend;

/// One entry per served name.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let names = &app.config.served_model_names;
    let data: Vec<_> = names.iter().map(|name| model(&app, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

/// The entry of one name, which may contain slashes.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let served = app.config.served_model_names.first();
    let served = served.map_or("", String::as_str);
    let Ok(Path(name)) = name else {
        // No text at all, so no name of a model: it is repeated as it came.
        let escaped = uri.path().rsplit("/models/").next();
        return Err(unknown_model(escaped.unwrap_or_default(), served));
    };
    let name = name.trim_end_matches('/');
    let known = app
        .config
        .served_model_names
        .iter()
        .any(|known| known == name);
    match known {
        true => Ok(Json(model(&app, name))),
        false => Err(unknown_model(name, served)),
    }
}

fn model(app: &App, name: &str) -> Value {
    let context = app.engine.info().context_length;
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "local",
        "root": app.config.model_path,
        "parent": null,
        "max_model_len": context,
        "context_length": context,
        "capabilities": {
            "tools": app.files.template.is_some(),
            "reasoning": app.files.template.is_some(),
            "json_schema": app.config.grammar.backend == GrammarBackend::Llguidance,
            "vision": false,
        },
    })
}
