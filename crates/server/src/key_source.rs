//! Where the API keys of a server come from.

use std::path::PathBuf;

/// Where keys come from.
#[derive(Clone, Debug, Default)]
pub struct KeySource {
    /// Keys themselves.
    pub keys: Vec<String>,
    /// A file with one per line; `#` begins a comment.
    pub file: Option<PathBuf>,
}

impl KeySource {
    /// All keys as of now; the error says what is wrong with the file.
    pub fn read(&self) -> Result<Vec<String>, String> {
        let mut keys = self.keys.clone();
        if let Some(path) = &self.file {
            let shown = path.display();
            let text =
                std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
            let lines = text.lines().map(str::trim);
            keys.extend(
                lines
                    .filter(|line| !line.is_empty() && !line.starts_with('#'))
                    .map(str::to_owned),
            );
            if keys.is_empty() {
                return Err(format!("{shown}: expected a key per line, found none"));
            }
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_and_never_opens_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let source = KeySource {
            keys: Vec::new(),
            file: Some(file.clone()),
        };
        assert!(source.read().unwrap_err().contains("keys: "), "no file");
        std::fs::write(&file, "# ours\n\n one \ntwo\n").unwrap();
        assert_eq!(source.read().unwrap(), ["one", "two"]);
        std::fs::write(&file, "# nobody\n").unwrap();
        assert!(source.read().unwrap_err().contains("found none"));
    }
}
