//! `/openapi.json`: what this build with these flags takes, for tools that make requests of it.

pub(crate) mod operation;

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::routes::{Guard, Route};

pub(crate) use operation::Operation;

/// The document of these routes.
pub(crate) fn document(_app: &App, routes: &[Route]) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path = route.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Spinney", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
    })
}

fn operation(route: &Route) -> Value {
    let Operation {
        summary,
        body,
        query,
        content,
        streams,
    } = route.operation;
    json!({"summary": summary, "x": [body.is_some(), query.len(), content, streams, route.guard == Guard::Open]})
}
