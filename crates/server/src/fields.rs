//! Typed access to the fields of a request body; every refusal names the field.
//!
//! A `null` counts as absent and unknown keys are nobody's business here.

use serde_json::{Map, Value};

use crate::error::{ApiError, shorten};

/// One JSON object and where it sits in the body.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

/// Bounds of a number.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Smallest value.
    pub low: f64,
    /// Whether `low` itself is refused.
    pub low_open: bool,
    /// Largest value.
    pub high: f64,
}

impl Bounds {
    /// Both ends allowed.
    pub const fn closed(low: f64, high: f64) -> Self {
        Bounds {
            low,
            low_open: false,
            high,
        }
    }
}

impl<'a> Fields<'a> {
    /// The body itself.
    pub fn root(map: &'a Map<String, Value>) -> Self {
        Fields {
            map,
            path: String::new(),
        }
    }

    /// An object found at `path`.
    pub fn nested(map: &'a Map<String, Value>, path: impl Into<String>) -> Self {
        Fields {
            map,
            path: path.into(),
        }
    }

    /// `value` as an object found at `path`.
    pub fn of(value: &'a Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Fields { map, path }),
            _ => Err(wrong_type(&path, "an object", value)),
        }
    }

    /// Path of the field `name`, as in `messages.[0].role`.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Path of this object.
    pub fn own_path(&self) -> &str {
        &self.path
    }

    /// The names of all fields that are not null.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| name.as_str())
    }

    /// A field; `None` when absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub fn required(&self, name: &str) -> Result<&'a Value, ApiError> {
        self.get(name).ok_or_else(|| {
            let path = self.path(name);
            let message = format!("Missing required parameter: '{path}'.");
            ApiError::invalid("missing_required_parameter", path, message)
        })
    }

    /// A truth value.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(value) => Err(wrong_type(&self.path(name), "a boolean", value)),
        }
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(value) => Err(wrong_type(&self.path(name), "a string", value)),
        }
    }

    /// A string of at most `length_max` characters.
    pub fn text(&self, name: &str, length_max: usize) -> Result<Option<&'a str>, ApiError> {
        let text = self.string(name)?;
        let length = text.map_or(0, |text| text.chars().count());
        if length > length_max {
            let path = self.path(name);
            let message = format!(
                "Invalid '{path}': expected at most {length_max} characters, got {length}."
            );
            return Err(ApiError::invalid("string_above_max_length", path, message));
        }
        Ok(text)
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(name)
            .map(|value| Fields::of(value, self.path(name)))
            .transpose()
    }

    /// The entries of this object.
    pub fn entries(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// A list of at most `length_max` entries.
    pub fn array(&self, name: &str, length_max: usize) -> Result<Option<&'a [Value]>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(values)) if values.len() <= length_max => Ok(Some(values)),
            Some(Value::Array(values)) => Err(too_long(&self.path(name), values.len(), length_max)),
            Some(value) => Err(wrong_type(&self.path(name), "an array", value)),
        }
    }

    /// An integer between `low` and `high`.
    pub fn integer(&self, name: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let path = self.path(name);
        let number = integer_at(value, &path)?;
        if number < low {
            let message = format!("Invalid '{path}': expected at least {low}, got {number}.");
            return Err(ApiError::invalid("integer_below_min_value", path, message));
        }
        if number > high {
            let message = format!("Invalid '{path}': expected at most {high}, got {number}.");
            return Err(ApiError::invalid("integer_above_max_value", path, message));
        }
        Ok(Some(number))
    }

    /// A count, at least `low`.
    pub fn count(&self, name: &str, low: i64) -> Result<Option<usize>, ApiError> {
        Ok(self
            .integer(name, low, i64::MAX)?
            .map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    /// A number within `bounds`.
    pub fn number(&self, name: &str, bounds: Bounds) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        number_at(value, &self.path(name), bounds).map(Some)
    }
}

/// An integer written `256` or `256.0`, within i64.
pub fn integer_at(value: &Value, path: &str) -> Result<i64, ApiError> {
    let Value::Number(number) = value else {
        return Err(wrong_type(path, "an integer", value));
    };
    if let Some(integer) = number.as_i64() {
        return Ok(integer);
    }
    // Floats from -2^63 up to, not including, 2^63 convert without loss when they have no fraction.
    let limit = 2.0_f64.powi(63);
    match number.as_f64() {
        Some(float)
            if float.fract() == 0.0 && (-limit..limit).contains(&float) && !number.is_u64() =>
        {
            Ok(float as i64)
        }
        _ => Err(wrong_type(path, "an integer", value)),
    }
}

/// A number within `bounds`.
pub fn number_at(value: &Value, path: &str, bounds: Bounds) -> Result<f32, ApiError> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        _ => None,
    };
    let number = number.ok_or_else(|| wrong_type(path, "a number", value))?;
    // As it was written: the digits of 1e308 would fill the message.
    let sent = || shorten(&value.to_string());
    if number < bounds.low || bounds.low_open && number == bounds.low {
        let than = if bounds.low_open {
            "more than"
        } else {
            "at least"
        };
        let message = format!(
            "Invalid '{path}': expected {than} {}, got {}.",
            bounds.low,
            sent()
        );
        return Err(ApiError::invalid("decimal_below_min_value", path, message));
    }
    if number > bounds.high {
        let message = format!(
            "Invalid '{path}': expected at most {}, got {}.",
            bounds.high,
            sent()
        );
        return Err(ApiError::invalid("decimal_above_max_value", path, message));
    }
    // What is above zero must not become zero.
    Ok(match number as f32 {
        0.0 if bounds.low_open => f32::MIN_POSITIVE,
        single => single,
    })
}

/// `invalid_type`.
pub fn wrong_type(path: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {}", shorten(&number.to_string())),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    let message = format!("Invalid type for '{path}': expected {expected}, got {found}.");
    ApiError::invalid("invalid_type", path, message)
}

/// `array_above_max_length`.
pub fn too_long(path: &str, length: usize, length_max: usize) -> ApiError {
    let message = format!("Invalid '{path}': expected at most {length_max} entries, got {length}.");
    ApiError::invalid("array_above_max_length", path, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code<T: std::fmt::Debug>(result: Result<T, ApiError>) -> &'static str {
        result.unwrap_err().code.unwrap()
    }

    #[test]
    fn integers_may_be_written_as_floats() {
        let body = json!({"a": 256, "b": 256.0, "c": 256.5, "d": "256", "e": true, "f": null,
            "g": 9223372036854775808_u64, "h": -9223372036854775808_i64, "i": 1e30});
        let fields = Fields::root(body.as_object().unwrap());
        let read = |name| fields.integer(name, i64::MIN, i64::MAX);
        assert_eq!(read("a").unwrap(), Some(256));
        assert_eq!(read("b").unwrap(), Some(256));
        assert_eq!(read("f").unwrap(), None);
        assert_eq!(read("h").unwrap(), Some(i64::MIN));
        for name in ["c", "d", "e", "g", "i"] {
            assert_eq!(code(read(name)), "invalid_type", "{name}");
        }
        assert_eq!(code(fields.integer("a", 0, 255)), "integer_above_max_value");
        assert_eq!(
            code(fields.integer("a", 257, 300)),
            "integer_below_min_value"
        );
    }

    #[test]
    fn numbers_have_bounds() {
        let body = json!({"t": 2, "low": 0.0, "text": "1", "big": 2.5, "tiny": 1e-60});
        let fields = Fields::root(body.as_object().unwrap());
        let closed = Bounds::closed(0.0, 2.0);
        assert_eq!(fields.number("t", closed).unwrap(), Some(2.0));
        assert_eq!(fields.number("low", closed).unwrap(), Some(0.0));
        assert_eq!(
            code(fields.number("big", closed)),
            "decimal_above_max_value"
        );
        assert_eq!(code(fields.number("text", closed)), "invalid_type");
        let open = Bounds {
            low_open: true,
            ..closed
        };
        assert_eq!(code(fields.number("low", open)), "decimal_below_min_value");
        for huge in [json!(1e308), json!(-1e308)] {
            let message = number_at(&huge, "t", closed).unwrap_err().message;
            assert!(message.ends_with(&format!("got {huge}.")), "{message}");
        }
        for (bounds, single) in [(open, f32::MIN_POSITIVE), (closed, 0.0)] {
            assert_eq!(fields.number("tiny", bounds).unwrap(), Some(single));
        }
    }

    #[test]
    fn errors_carry_the_path() {
        let body = json!({"outer": {"inner": 1}});
        let fields = Fields::root(body.as_object().unwrap());
        let outer = fields.object("outer").unwrap().unwrap();
        let error = outer.boolean("inner").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("outer.inner"));
        let error = outer.required("gone").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("outer.gone"));
        assert_eq!(error.code, Some("missing_required_parameter"));
    }
}
