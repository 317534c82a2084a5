//! Typed access to a JSON object, with errors that name the file and the key.

use serde_json::{Map, Value};

use crate::{CheckpointSource, ModelError};

/// Layers, heads and values per head at most. With the limits below, every product of sizes that
/// makes a shape, or a line of the memory plan, stays far inside 64 bits.
pub(super) const HEADS_MAX: usize = 1 << 10;
/// Width of the residual stream or of an MLP at most.
pub(super) const WIDTH_MAX: usize = 1 << 18;
/// Rows of an embedding, or positions, at most.
pub(super) const ROWS_MAX: usize = 1 << 24;

/// An object of a configuration file.
pub(super) struct Fields {
    file: String,
    /// Dotted path of the object inside the file, empty for the top level.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    pub(super) fn read(source: &CheckpointSource, file: &str) -> Result<Self, ModelError> {
        let text = source.text(file)?;
        let file = source.display(file);
        match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => Ok(Fields {
                file,
                path: String::new(),
                map,
            }),
            Ok(_) => Err(ModelError::File {
                file,
                reason: "expected a JSON object".into(),
            }),
            Err(cause) => Err(ModelError::File {
                file,
                reason: format!("expected a JSON object: {cause}"),
            }),
        }
    }

    /// An object inside this one; `None` if the key is absent or null.
    pub(super) fn object(&self, key: &str) -> Result<Option<Fields>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields {
                file: self.file.clone(),
                path: self.name(key),
                map: map.clone(),
            })),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    /// The value of a key; null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some)
            .ok_or_else(|| self.wrong(key, "a non-negative integer", value))
    }

    /// A size that must be there, from 1 to `most`.
    pub(super) fn positive(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        let expected = format!("expected an integer from 1 to {most}");
        match self.size(key)? {
            Some(size) if (1..=most).contains(&size) => Ok(size),
            Some(size) => Err(self.error(key, &format!("{expected}, found {size}"))),
            None => Err(self.error(key, &format!("{expected}, found nothing"))),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_f64()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a number", value))
    }

    /// The epsilon of all norms, 1e-6 where the file gives none.
    pub(super) fn norm_eps(&self) -> Result<f32, ModelError> {
        match self.number("rms_norm_eps")? {
            None => Ok(1e-6),
            Some(eps) if (0.0..=1.0).contains(&eps) => Ok(eps as f32),
            Some(eps) => Err(self.error("rms_norm_eps", &format!("expected 0 to 1, found {eps}"))),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a string", value))
    }

    pub(super) fn strings(&self, key: &str) -> Result<Option<Vec<String>>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let strings = value.as_array().and_then(|list| {
            list.iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        });
        strings
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a list of strings", value))
    }

    pub(super) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let sizes = value.as_array().and_then(|list| {
            list.iter()
                .map(|item| item.as_u64().and_then(|size| usize::try_from(size).ok()))
                .collect::<Option<Vec<_>>>()
        });
        sizes
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a list of layer numbers", value))
    }

    /// A string that, where present, must be one of `allowed`.
    pub(super) fn require_string(&self, key: &str, allowed: &[&str]) -> Result<(), ModelError> {
        match self.string(key)? {
            Some(found) if !allowed.contains(&found) => Err(self.error(
                key,
                &format!("expected {}, found \"{found}\"", allowed.join(" or ")),
            )),
            _ => Ok(()),
        }
    }

    /// A flag that, where present, must have this value.
    pub(super) fn require_flag(&self, key: &str, wanted: bool) -> Result<(), ModelError> {
        match self.flag(key)? {
            Some(found) if found != wanted => {
                Err(self.error(key, &format!("only {wanted} is supported, found {found}")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn error(&self, key: &str, reason: &str) -> ModelError {
        ModelError::File {
            file: self.file.clone(),
            reason: format!("{}: {reason}", self.name(key)),
        }
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> ModelError {
        let mut found = found.to_string();
        if found.len() > 80 {
            found = found.chars().take(80).collect::<String>() + "...";
        }
        self.error(key, &format!("expected {expected}, found {found}"))
    }

    fn name(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

/// Rotary base, and the rotated fraction of a head where the file gives one. Plain rotary only.
pub(super) fn rope(fields: &Fields) -> Result<(f64, Option<f64>), ModelError> {
    let parameters = fields.object("rope_parameters")?;
    let scaling = fields.object("rope_scaling")?;
    for part in [&parameters, &scaling].into_iter().flatten() {
        part.require_string("rope_type", &["default"])?;
        part.require_string("type", &["default"])?;
    }
    if let Some(scaling) = &scaling
        && scaling.get("rope_type").is_none()
        && scaling.get("type").is_none()
    {
        return Err(fields.error("rope_scaling", "expected null or a rope_type of default"));
    }
    let nested = parameters.as_ref();
    let theta = match nested
        .map(|part| part.number("rope_theta"))
        .transpose()?
        .flatten()
    {
        Some(theta) => Some(theta),
        None => fields.number("rope_theta")?,
    };
    let fraction = match nested
        .map(|part| part.number("partial_rotary_factor"))
        .transpose()?
    {
        Some(Some(fraction)) => Some(fraction),
        _ => fields.number("partial_rotary_factor")?,
    };
    match theta {
        Some(theta) if theta > 1.0 => Ok((theta, fraction)),
        Some(theta) => Err(fields.error(
            "rope_theta",
            &format!("expected more than 1, found {theta}"),
        )),
        None => Err(fields.error(
            "rope_parameters.rope_theta",
            "expected a number, found nothing",
        )),
    }
}
