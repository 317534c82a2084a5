//! Names of models on the hub.

use std::fmt;
use std::str::FromStr;

/// Longest name of an owner or a model.
const NAME_MAX: usize = 96;
/// Characters of a commit.
const COMMIT_LENGTH: usize = 40;

/// `org/name` or `org/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
}

impl HubId {
    /// Whether the revision is a commit, which never changes.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }
}

/// Whether this is the full hash of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl FromStr for HubId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (repo, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() != 2 || !parts.iter().all(|part| is_name(part)) {
            return Err("expected org/name or org/name@revision".to_owned());
        }
        // A revision becomes a path below `refs`.
        let known = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let plain = |part: &str| !part.is_empty() && !part.starts_with('.');
        if !revision.chars().all(known) || !revision.split('/').all(plain) {
            return Err(format!(
                "expected a branch, a tag or a commit behind the @, found '{revision}'"
            ));
        }
        Ok(HubId {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
        })
    }
}

fn is_name(part: &str) -> bool {
    (1..=NAME_MAX).contains(&part.len())
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && part
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

impl fmt::Display for HubId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            "main" => formatter.write_str(&self.repo),
            revision => write!(formatter, "{}@{revision}", self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_an_owner_a_name_and_perhaps_a_revision() {
        let id: HubId = "Qwen/Qwen3.6-27B".parse().unwrap();
        assert_eq!((&*id.repo, &*id.revision), ("Qwen/Qwen3.6-27B", "main"));
        assert_eq!(id.to_string(), "Qwen/Qwen3.6-27B");
        let id: HubId = "a/b@refs/pr/3".parse().unwrap();
        assert_eq!((&*id.revision, id.is_commit()), ("refs/pr/3", false));
        assert_eq!(id.to_string(), "a/b@refs/pr/3");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let id: HubId = format!("a/b@{commit}").parse().unwrap();
        assert!(id.is_commit());
    }

    #[test]
    fn what_could_be_a_path_is_no_id() {
        for wrong in [
            "", "a", "/a/b", "a/b/c", "./a", "../a", "a/..", "~/a", "a/", "/a", "-a/b", "a b/c",
            "a/b@", "a/b@../x", "a/b@x//y", "a/b@.x", "a/b@x y", "a/b@/x",
        ] {
            assert!(wrong.parse::<HubId>().is_err(), "{wrong}");
        }
    }
}
