//! The three questions that the hub is asked: a model's files, a file's tag and size, its bytes.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::environment::HubEnvironment;
use super::error::HubError;
use super::id::{HubId, is_commit};

/// Time to reach a server, and for it to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence within an answer after which it counts as broken off.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Redirects followed at most while looking for a file's tag.
const REDIRECTS_MAX: usize = 5;
/// Bytes of a list of files at most.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Asks the hub. Clones share connections.
#[derive(Clone, Debug)]
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// A model at one commit.
#[derive(Debug)]
pub(super) struct ModelInfo {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// A file at one commit.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    /// Names its contents; the SHA-256 of a large file.
    pub(super) etag: String,
    pub(super) bytes: u64,
}

/// The rest of a file.
pub(super) struct Rest {
    /// Where it begins: as asked for, or 0 where the server knows no ranges.
    pub(super) from: u64,
    /// Size of the whole file, where the server says it.
    pub(super) total: Option<u64>,
    pub(super) body: Box<dyn Read>,
}

impl Client {
    pub(super) fn new(environment: &HubEnvironment) -> Result<Self, HubError> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &environment.certificates {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(path)?));
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .user_agent(concat!("spinney/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(ANSWER_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(Some(SILENCE_MAX))
            .build();
        Ok(Client {
            agent: config.into(),
            endpoint: environment.endpoint.clone(),
            token: environment.token.clone(),
        })
    }

    /// The commit that a revision leads to, and its files.
    pub(super) fn model(&self, id: &HubId) -> Result<ModelInfo, HubError> {
        let revision = escaped(&id.revision);
        let url = format!(
            "{}/api/models/{}/revision/{revision}",
            self.endpoint, id.repo
        );
        let answer = self.agent.get(&url);
        let mut response = self
            .signed(answer)
            .call()
            .map_err(|error| unreachable(&url, &error))?;
        self.check_status(&response, &url, &id.repo, &id.to_string())?;
        let fault = |reason: &str| HubError::Answer {
            what: url.clone(),
            reason: reason.to_owned(),
        };
        let text = response
            .body_mut()
            .with_config()
            .limit(LIST_BYTES_MAX)
            .read_to_string()
            .map_err(|error| unreachable(&url, &error))?;
        let answer: Value = serde_json::from_str(&text)
            .map_err(|_| fault("expected JSON; is HF_ENDPOINT the address of a hub?"))?;
        let commit = answer.get("sha").and_then(Value::as_str);
        let commit = commit.filter(|commit| is_commit(commit));
        let files = answer.get("siblings").and_then(Value::as_array);
        let (Some(commit), Some(files)) = (commit, files) else {
            return Err(fault("expected a commit and a list of files"));
        };
        let names = files.iter().filter_map(|file| file.get("rfilename"));
        Ok(ModelInfo {
            commit: commit.to_owned(),
            files: names
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
        })
    }

    /// Tag and size of a file. The hub says both in the redirect to where its bytes are.
    pub(super) fn file(
        &self,
        repo: &str,
        commit: &str,
        name: &str,
    ) -> Result<RemoteFile, HubError> {
        let url = self.url(repo, commit, name);
        let response = self.head(url.clone())?;
        self.check_status(&response, &url, repo, repo)?;
        let fault = |reason: &str| HubError::Answer {
            what: url.clone(),
            reason: reason.to_owned(),
        };
        let etag = header(&response, "x-linked-etag").or_else(|| header(&response, "etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        // The tag becomes the name of a file.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let etag = etag.filter(|etag| !etag.is_empty() && etag.chars().all(plain));
        let size = header(&response, "x-linked-size").or_else(|| {
            // That of a redirect is the size of its own text.
            header(&response, "content-length").filter(|_| response.status().is_success())
        });
        let size = size.and_then(|size| size.parse().ok());
        let (Some(etag), Some(bytes)) = (etag, size) else {
            return Err(fault("expected headers with the file's tag and size"));
        };
        Ok(RemoteFile {
            name: name.to_owned(),
            etag: etag.to_owned(),
            bytes,
        })
    }

    /// Follows redirects within the same server, as those of a renamed model, and no others.
    fn head(&self, mut url: String) -> Result<Response<Body>, HubError> {
        for _ in 0..REDIRECTS_MAX {
            let request = self.agent.head(&url).header("accept-encoding", "identity");
            let request = self.signed(request).config().max_redirects(0).build();
            let response = request.call().map_err(|error| unreachable(&url, &error))?;
            let location = header(&response, "location").filter(|_| is_redirect(&response));
            match location.filter(|to| to.starts_with('/') && !to.starts_with("//")) {
                Some(path) => url = format!("{}{path}", origin(&url)),
                None => return Ok(response),
            }
        }
        Err(HubError::Answer {
            what: url,
            reason: format!("more than {REDIRECTS_MAX} redirects"),
        })
    }

    /// The bytes of a file from `from` on.
    pub(super) fn rest(
        &self,
        repo: &str,
        commit: &str,
        name: &str,
        from: u64,
    ) -> Result<Rest, HubError> {
        let url = self.url(repo, commit, name);
        let mut request = self.agent.get(&url).header("accept-encoding", "identity");
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        let response = self
            .signed(request)
            .call()
            .map_err(|error| unreachable(&url, &error))?;
        self.check_status(&response, &url, repo, repo)?;
        let (from, total) = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = header(&response, "content-range").and_then(content_range);
                let found = range.filter(|range| range.0 == from);
                found.ok_or_else(|| HubError::Answer {
                    what: url.clone(),
                    reason: format!("expected the bytes from {from} on, found others"),
                })?
            }
            _ => {
                let length = header(&response, "content-length");
                (0, length.and_then(|length| length.parse().ok()))
            }
        };
        Ok(Rest {
            from,
            total,
            body: Box::new(response.into_body().into_reader()),
        })
    }

    fn url(&self, repo: &str, commit: &str, name: &str) -> String {
        format!(
            "{}/{repo}/resolve/{commit}/{}",
            self.endpoint,
            escaped(name)
        )
    }

    fn signed<T>(&self, request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// What a status other than success and redirect means.
    fn check_status(
        &self,
        response: &Response<Body>,
        url: &str,
        repo: &str,
        shown: &str,
    ) -> Result<(), HubError> {
        let status = response.status();
        if status.is_success() || is_redirect(response) {
            return Ok(());
        }
        let (id, endpoint) = (shown.to_owned(), self.endpoint.clone());
        let with_token = self.token.is_some();
        let what = url.to_owned();
        // The hub hides private models behind 401; only its code tells them from gated ones.
        let code = header(response, "x-error-code").unwrap_or_default();
        Err(match (code, status.as_u16()) {
            ("RepoNotFound", _) => HubError::Unknown {
                id,
                endpoint,
                with_token,
            },
            ("RevisionNotFound", _) => HubError::UnknownRevision { id },
            (_, 401 | 403) => HubError::Gated {
                id,
                repo: repo.to_owned(),
                endpoint,
                status: status.as_u16(),
                with_token,
            },
            ("", 404) => HubError::Unknown {
                id,
                endpoint,
                with_token,
            },
            (_, 408 | 429 | 500..) => HubError::Unreachable {
                what,
                reason: format!("HTTP {status}"),
            },
            _ => HubError::Answer {
                what,
                reason: format!("expected the file, found HTTP {status}"),
            },
        })
    }
}

fn is_redirect(response: &Response<Body>) -> bool {
    matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// Scheme and host of an address.
fn origin(url: &str) -> String {
    let uri: Option<Uri> = url.parse().ok();
    let parts = uri
        .as_ref()
        .and_then(|uri| Some((uri.scheme_str()?, uri.authority()?)));
    parts.map_or_else(String::new, |(scheme, host)| format!("{scheme}://{host}"))
}

/// First byte and size of the whole of `bytes 5-9/10`; the size may be `*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.parse().ok()?;
    Some((first, total.parse().ok()))
}

/// Percent-encodes everything that has a meaning in an address.
fn escaped(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes()
        .map(|byte| match plain(&byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

fn unreachable(url: &str, error: &ureq::Error) -> HubError {
    HubError::Unreachable {
        what: url.to_owned(),
        reason: error.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, HubError> {
    let pem = std::fs::read(path).map_err(|reason| super::cache::disk(path, reason))?;
    let items = ureq::tls::parse_pem(&pem);
    let found: Vec<_> = items
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(HubError::Answer {
            what: format!("SSL_CERT_FILE={}", path.display()),
            reason: "expected certificates in PEM form, found none".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_addresses() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 0-9/*"), Some((0, None)));
        for wrong in ["", "bytes", "bytes */10", "bytes x-1/2", "items 0-1/2"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
        assert_eq!(escaped("refs/pr 1?"), "refs%2Fpr%201%3F");
        assert_eq!(origin("http://a:1/b/c?d"), "http://a:1");
    }

    #[test]
    fn a_file_of_certificates_must_hold_some() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = certificates(file.path()).unwrap_err().to_string();
        assert!(
            error.contains("SSL_CERT_FILE") && error.contains("found none"),
            "{error}"
        );
        assert!(certificates(Path::new("no/such/file")).is_err());
    }
}
