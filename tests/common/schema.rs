//! As much of JSON Schema as the server's own document uses. Any other keyword is a panic, so that
//! nothing is taken for a fit that was not looked at.

// Every test file uses its own part of this.
#![allow(dead_code, clippy::unwrap_used)]

use serde_json::Value;

/// Whether `value` fits `schema`, a part of the document `root`.
pub fn fits(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else {
        return schema.as_bool().unwrap();
    };
    keywords
        .iter()
        .all(|(keyword, rule)| match keyword.as_str() {
            "description" => true,
            "if" => {
                let branch = if fits(root, rule, value) {
                    "then"
                } else {
                    "else"
                };
                keywords
                    .get(branch)
                    .is_none_or(|branch| fits(root, branch, value))
            }
            "then" | "else" => keywords.contains_key("if"),
            "allOf" => list(rule).iter().all(|one| fits(root, one, value)),
            "anyOf" => list(rule).iter().any(|one| fits(root, one, value)),
            "oneOf" => {
                list(rule)
                    .iter()
                    .filter(|one| fits(root, one, value))
                    .count()
                    == 1
            }
            "not" => !fits(root, rule, value),
            "$ref" => {
                let path = rule.as_str().unwrap().strip_prefix('#').unwrap();
                fits(root, root.pointer(path).unwrap(), value)
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "enum" => list(rule).contains(value),
            "const" => match (rule.as_f64(), value.as_f64()) {
                (Some(rule), Some(value)) => rule == value,
                _ => rule == value,
            },
            "minimum" => value.as_number().is_none_or(|_| at_least(value, rule)),
            "maximum" => value.as_number().is_none_or(|_| at_least(rule, value)),
            "exclusiveMinimum" => value
                .as_f64()
                .is_none_or(|value| value > rule.as_f64().unwrap()),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() >= count(rule)),
            "maxLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() <= count(rule)),
            "pattern" => {
                // The only one there is: decimal token ids.
                assert_eq!(rule, "^(0|[1-9][0-9]*)$");
                let digits =
                    |text: &str| text.parse::<u128>().is_ok_and(|id| id.to_string() == text);
                value.as_str().is_none_or(digits)
            }
            _ => object_fits(root, keywords, keyword, rule, value),
        })
}

fn object_fits(
    root: &Value,
    keywords: &serde_json::Map<String, Value>,
    keyword: &str,
    rule: &Value,
    value: &Value,
) -> bool {
    let known = keywords.get("properties").and_then(Value::as_object);
    let fields = value.as_object();
    match keyword {
        "maxProperties" => fields.is_none_or(|fields| fields.len() <= count(rule)),
        "propertyNames" => fields.is_none_or(|fields| {
            let mut names = fields.keys();
            names.all(|name| fits(root, rule, &name.as_str().into()))
        }),
        "properties" => fields.is_none_or(|fields| {
            let mut rules = rule.as_object().unwrap().iter();
            rules.all(|(name, rule)| fields.get(name).is_none_or(|field| fits(root, rule, field)))
        }),
        "additionalProperties" => fields.is_none_or(|fields| {
            let other = |name: &String| known.is_none_or(|known| !known.contains_key(name));
            let mut others = fields.iter().filter(|(name, _)| other(name));
            others.all(|(_, field)| fits(root, rule, field))
        }),
        "required" => fields.is_none_or(|fields| {
            let mut names = list(rule).iter();
            names.all(|name| fields.contains_key(name.as_str().unwrap()))
        }),
        "minItems" => value
            .as_array()
            .is_none_or(|items| items.len() >= count(rule)),
        "maxItems" => value
            .as_array()
            .is_none_or(|items| items.len() <= count(rule)),
        "items" => {
            let items = value.as_array();
            items.is_none_or(|items| items.iter().all(|item| fits(root, rule, item)))
        }
        other => panic!("an unknown keyword: {other}"),
    }
}

fn list(rule: &Value) -> &[Value] {
    rule.as_array().unwrap()
}

fn count(rule: &Value) -> usize {
    usize::try_from(rule.as_u64().unwrap()).unwrap()
}

/// Integers are compared as such: bounds of 64 bits are no floats.
fn at_least(value: &Value, bound: &Value) -> bool {
    match (integer(value), integer(bound)) {
        (Some(value), Some(bound)) => value >= bound,
        _ => value.as_f64().unwrap() >= bound.as_f64().unwrap(),
    }
}

fn integer(value: &Value) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or(value.as_u64().map(i128::from))
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("an unknown type: {other}"),
    }
}
