//! The tools that a request offers, and what their schemas say about arguments.

use serde_json::Value;

/// Subschemas that are looked at for one argument, so that references in a circle end.
const SCHEMAS_MAX: usize = 256;

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments; null = none declared.
    pub parameters: Value,
}

/// What a request says about calls.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSet {
    /// All tools that the model was shown.
    pub tools: Vec<Tool>,
    /// The only names that may be called; `None` = any, unknown ones too, since clients answer those
    /// and the model recovers.
    pub callable: Option<Vec<String>>,
    /// Whether the output goes on after the first call.
    pub parallel: bool,
}

impl ToolSet {
    /// Whether a call of `name` is one.
    pub(super) fn may_call(&self, name: &str) -> bool {
        match &self.callable {
            None => true,
            Some(names) => names.iter().any(|known| known == name),
        }
    }

    /// Names of the tools that were offered and may be called.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.tools.iter().map(|tool| tool.name.as_str());
        names.filter(|name| self.may_call(name))
    }

    /// The schema of a tool's arguments.
    pub(super) fn parameters(&self, tool: &str) -> &Value {
        let found = self.tools.iter().find(|known| known.name == tool);
        found.map_or(&Value::Null, |tool| &tool.parameters)
    }
}

/// The schema of a property of `parameters`.
pub(super) fn property<'a>(parameters: &'a Value, key: &str) -> Option<&'a Value> {
    let declared = match reference(parameters, parameters) {
        Some(target) => target,
        None => parameters,
    };
    declared.get("properties")?.get(key)
}

/// Names of the properties of `parameters`.
pub(super) fn property_names(parameters: &Value) -> impl Iterator<Item = &str> {
    let declared = reference(parameters, parameters).unwrap_or(parameters);
    let properties = declared.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(|map| map.keys().map(String::as_str))
}

/// Where a local `$ref` leads.
fn reference<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// Types that an argument may have. None at all means a string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Types {
    pub(super) string: bool,
    pub(super) integer: bool,
    pub(super) number: bool,
    pub(super) boolean: bool,
    pub(super) null: bool,
    pub(super) object: bool,
    pub(super) array: bool,
    /// Strings that are allowed, if the schema lists them.
    pub(super) choices: Vec<String>,
}

impl Types {
    /// Of the property `key` of `parameters`.
    pub(super) fn of(parameters: &Value, key: &str) -> Self {
        let mut types = Types::default();
        if let Some(schema) = property(parameters, key) {
            types.gather(schema, parameters, &mut { SCHEMAS_MAX });
        }
        types
    }

    /// Whether the text of a value is its value, so that it can be handed on as it comes.
    pub(super) fn is_text(&self) -> bool {
        let other = self.integer || self.number || self.boolean || self.null;
        !other && !self.object && !self.array && self.choices.is_empty()
    }

    fn gather(&mut self, schema: &Value, root: &Value, left: &mut usize) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        match &schema["type"] {
            Value::String(name) => self.allow(name),
            Value::Array(names) => names
                .iter()
                .filter_map(Value::as_str)
                .for_each(|name| self.allow(name)),
            _ => {}
        }
        if schema["nullable"] == true {
            self.null = true;
        }
        let listed = schema["enum"].as_array().into_iter().flatten();
        for value in listed.chain(schema.get("const")) {
            match value {
                Value::String(choice) => self.choices.push(choice.clone()),
                other => self.allow(kind(other)),
            }
        }
        if let Some(target) = reference(schema, root) {
            self.gather(target, root, left);
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            for part in schema[name].as_array().into_iter().flatten() {
                self.gather(part, root, left);
            }
        }
    }

    fn allow(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn types(schema: Value) -> Types {
        let root = json!({"properties": {"a": schema}, "$defs": {
            "whole": {"type": "integer"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"},
                {"$ref": "#/$defs/loop"}, {"type": "boolean"}]}}});
        Types::of(&root, "a")
    }

    #[test]
    fn types_are_gathered_from_everywhere() {
        let text = types(json!({"type": "string"}));
        assert!(text.string && text.is_text());
        let whole = types(json!({"$ref": "#/$defs/whole"}));
        assert!(whole.integer && !whole.is_text());
        let either =
            types(json!({"anyOf": [{"type": ["array", "null"]}, {"$ref": "#/$defs/whole"}]}));
        assert!(either.array && either.null && either.integer && !either.string);
        let looped = types(json!({"$ref": "#/$defs/loop"}));
        assert!(!looped.integer, "circles end: {looped:?}");
        let listed = types(json!({"enum": ["a", 1, null]}));
        assert_eq!(listed.choices, ["a"]);
        assert!(listed.integer && listed.null && !listed.is_text());
        for nothing in [
            json!(true),
            json!({}),
            json!({"type": 5}),
            json!({"$ref": "#/no"}),
        ] {
            assert!(types(nothing.clone()).is_text(), "{nothing}");
        }
        assert!(Types::of(&json!({"type": "object"}), "a").is_text());
        assert!(Types::of(&Value::Null, "a").is_text());
    }
}
