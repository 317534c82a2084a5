//! `response_format` of a request.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::error::{ApiError, shorten};
use crate::fields::Fields;

/// A schema to obey.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonSchema {
    /// The schema.
    pub(crate) schema: Map<String, Value>,
    /// Keywords that cannot be enforced are an error; else they do not count.
    pub(crate) strict: bool,
    /// Hash of both.
    pub(crate) key: [u8; 32],
}

impl JsonSchema {
    /// Hashes a schema.
    pub(crate) fn new(schema: Map<String, Value>, strict: bool) -> Self {
        let mut hash = Sha256::new();
        hash.update([u8::from(strict)]);
        // The order of properties is part of the schema, and the map keeps it.
        hash.update(serde_json::to_vec(&schema).unwrap_or_default());
        JsonSchema {
            schema,
            strict,
            key: hash.finalize().into(),
        }
    }

    /// Reads the field; `None` where any text will do.
    pub(crate) fn read(fields: &Fields) -> Result<Option<Self>, ApiError> {
        let Some(format) = fields.object("response_format")? else {
            return Ok(None);
        };
        format.required("type")?;
        match format.string("type")?.unwrap_or_default() {
            "text" => Ok(None),
            "json_object" => Ok(Some(any_object())),
            "json_schema" => Self::named(&format).map(Some),
            other => {
                let message = format!(
                    "Invalid value: '{}'. Supported values are 'text', 'json_object' and \
                     'json_schema'.",
                    shorten(other)
                );
                let path = format.path("type");
                Err(ApiError::invalid("invalid_value", path, message))
            }
        }
    }

    fn named(format: &Fields) -> Result<Self, ApiError> {
        format.required("json_schema")?;
        let Some(named) = format.object("json_schema")? else {
            return Ok(any_object());
        };
        named.required("name")?;
        let name = named.string("name")?.unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) {
            let path = named.path("name");
            let message =
                format!("Invalid '{path}': expected 1 to 64 letters, digits, '_' and '-'.");
            return Err(ApiError::invalid("invalid_value", path, message));
        }
        named.string("description")?;
        named.required("schema")?;
        let schema = named.object("schema")?;
        let schema = schema.map(|own| own.entries().clone()).unwrap_or_default();
        let strict = named.boolean("strict")?.unwrap_or(false);
        Ok(JsonSchema::new(schema, strict))
    }
}

fn any_object() -> JsonSchema {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    JsonSchema::new(schema, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: Value) -> Result<Option<JsonSchema>, ApiError> {
        let body = json!({ "response_format": format });
        JsonSchema::read(&Fields::root(body.as_object().unwrap()))
    }

    #[test]
    fn formats_that_are_known() {
        assert_eq!(read(Value::Null).unwrap(), None);
        assert_eq!(read(json!({"type": "text"})).unwrap(), None);
        let object = read(json!({"type": "json_object"})).unwrap().unwrap();
        assert_eq!(Value::Object(object.schema), json!({"type": "object"}));
        for (strict, expected) in [
            (json!(true), true),
            (json!(false), false),
            (json!(null), false),
        ] {
            let named = json!({"name": "a-B_1", "schema": {"type": "array"}, "strict": strict});
            let format = json!({"type": "json_schema", "json_schema": named});
            let read = read(format).unwrap().unwrap();
            assert_eq!(Value::Object(read.schema), json!({"type": "array"}));
            assert_eq!(read.strict, expected);
        }
    }

    #[test]
    fn refusals_name_the_field() {
        let schema = |named: Value| json!({"type": "json_schema", "json_schema": named});
        for (format, code, param) in [
            (json!("json"), "invalid_type", ""),
            (json!({}), "missing_required_parameter", ".type"),
            (json!({"type": "x"}), "invalid_value", ".type"),
            (
                json!({"type": "json_schema"}),
                "missing_required_parameter",
                ".json_schema",
            ),
            (
                schema(json!({"schema": {}})),
                "missing_required_parameter",
                ".json_schema.name",
            ),
            (
                schema(json!({"name": "a b", "schema": {}})),
                "invalid_value",
                ".json_schema.name",
            ),
            (
                schema(json!({"name": "n"})),
                "missing_required_parameter",
                ".json_schema.schema",
            ),
            (
                schema(json!({"name": "n", "schema": true})),
                "invalid_type",
                ".json_schema.schema",
            ),
            (
                schema(json!({"name": "n", "schema": {}, "strict": 1})),
                "invalid_type",
                ".json_schema.strict",
            ),
        ] {
            let error = read(format.clone()).unwrap_err();
            let path = format!("response_format{param}");
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Some(code), Some(&*path)),
                "{format}"
            );
        }
    }
}
