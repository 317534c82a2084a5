//! What the environment says about the hub, under the names that its own tools use.

use std::ffi::OsString;
use std::path::PathBuf;

const ENDPOINT: &str = "https://huggingface.co";

/// Where the hub and its cache are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubEnvironment {
    /// Address without a slash at its end: HF_ENDPOINT.
    pub endpoint: String,
    /// Folder of the cache: HF_HUB_CACHE, else `hub` below HF_HOME.
    pub cache: PathBuf,
    /// Secret of a user: HF_TOKEN, else the file HF_TOKEN_PATH, else `token` below HF_HOME.
    pub token: Option<String>,
    /// Use the cache only: HF_HUB_OFFLINE.
    pub offline: bool,
    /// Certificates to trust instead of the built-in ones: SSL_CERT_FILE.
    pub certificates: Option<PathBuf>,
}

impl HubEnvironment {
    /// Reads the process's environment.
    pub fn read() -> Self {
        Self::from(|name| std::env::var_os(name))
    }

    /// Reads variables through `get`; empty ones count as not set.
    pub fn from(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let path = |name: &str| get(name).map(PathBuf::from);
        let text = |name: &str| get(name).and_then(|value| value.into_string().ok());
        let home = path("HF_HOME").unwrap_or_else(|| {
            path("XDG_CACHE_HOME")
                .or_else(|| path("HOME").map(|home| home.join(".cache")))
                .unwrap_or_else(std::env::temp_dir)
                .join("huggingface")
        });
        let token_file = || {
            let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
            std::fs::read_to_string(file).ok()
        };
        let token = text("HF_TOKEN").or_else(token_file);
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let offline = text("HF_HUB_OFFLINE").map(|value| value.to_ascii_lowercase());
        HubEnvironment {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            token: token
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: offline.is_some_and(|value| ["1", "on", "yes", "true"].contains(&&*value)),
            certificates: path("SSL_CERT_FILE"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> HubEnvironment {
        HubEnvironment::from(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn defaults_lie_below_the_home_folder() {
        let read = from(&[("HOME", "/h"), ("HF_ENDPOINT", "")]);
        assert_eq!(read.endpoint, "https://huggingface.co");
        assert_eq!(read.cache, PathBuf::from("/h/.cache/huggingface/hub"));
        assert_eq!((read.token, read.offline), (None, false));
    }

    #[test]
    fn every_variable_counts() {
        let read = from(&[
            ("HF_HOME", "/x"),
            ("HF_ENDPOINT", "http://localhost:1/"),
            ("HF_TOKEN", " secret\n"),
            ("HF_HUB_OFFLINE", "True"),
        ]);
        assert_eq!(read.cache, PathBuf::from("/x/hub"));
        assert_eq!(read.endpoint, "http://localhost:1");
        assert_eq!(
            (read.token.as_deref(), read.offline),
            (Some("secret"), true)
        );
        let read = from(&[("HF_HOME", "/x"), ("HF_HUB_CACHE", "/y")]);
        assert_eq!(read.cache, PathBuf::from("/y"));
        let read = from(&[("XDG_CACHE_HOME", "/z"), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!(read.cache, PathBuf::from("/z/huggingface/hub"));
        assert!(!read.offline);
    }

    #[test]
    fn a_token_may_lie_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "from-home\n").unwrap();
        std::fs::write(folder.path().join("other"), "from-file").unwrap();
        let home = folder.path().to_str().unwrap();
        let other = folder.path().join("other");
        let other = other.to_str().unwrap();
        assert_eq!(
            from(&[("HF_HOME", home)]).token.as_deref(),
            Some("from-home")
        );
        let read = from(&[("HF_HOME", home), ("HF_TOKEN_PATH", other)]);
        assert_eq!(read.token.as_deref(), Some("from-file"));
    }
}
